package architecture

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// rules counts the rules of each section; those of the first are V1 to V13.
var rules = map[string]int{"V": 13, "1.": 16, "2.": 7, "3.": 15, "4.": 8, "5.": 3, "6.": 9, "7.": 12, "8.": 10, "9.": 6, "10.": 3, "11.": 6}

func TestEveryRuleOfTheProtocolIsOnItsPage(t *testing.T) {
	page := protocolPage(t)
	for prefix, n := range rules {
		for i := 1; i <= n; i++ {
			row := "| " + prefix + strconv.Itoa(i) + " |"
			if !strings.Contains(page, row) {
				t.Errorf("docs/protocol.md has no row %q", row)
			}
		}
	}
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !regexp.MustCompile(`^ (V\d|\d+\.\d)`).MatchString(cells[1]) {
			continue
		}
		if !regexp.MustCompile("`Test|transcripts|fuzz target|planned|not ours").MatchString(cells[3]) {
			t.Errorf("rule%sis shown by nothing: %s", cells[1], cells[3])
		}
	}
}

// A test that a page names must exist.
func TestPagesNameTestsThatExist(t *testing.T) {
	root := moduleRoot(t)
	exists := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`)
	for _, file := range files(t, root, ".go") {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range declared.FindAllStringSubmatch(read(t, file), -1) {
			exists[m[1]] = true
		}
	}
	named := regexp.MustCompile("[`\\[]((?:Test|Fuzz)\\w+)[`\\]]")
	found := 0
	for _, file := range files(t, root, ".md") {
		for _, m := range named.FindAllStringSubmatch(read(t, file), -1) {
			found++
			if !exists[m[1]] {
				t.Errorf("%s names %s, which is no test", filepath.Base(file), m[1])
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d names of tests were found: the pattern is wrong", found)
	}
}

// The links of the pages must have a target.
func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	root := moduleRoot(t)
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, file := range files(t, root, ".md") {
		for _, m := range link.FindAllStringSubmatch(read(t, file), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
			}
		}
	}
}

func protocolPage(t *testing.T) string {
	t.Helper()
	return read(t, filepath.Join(moduleRoot(t), "docs", "protocol.md"))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// moduleRoot returns the directory of go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// files returns the files below a directory with an ending, hidden folders left
// out.
func files(t *testing.T, root, ending string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ending):
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
