package architecture

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A citation such as "protocol.md 3.5" or "design.md I4" must exist.
var (
	item     = `[IV]?\d+(?:\.\d+[a-z]?)?`
	citation = regexp.MustCompile(`(protocol|design)\.md,? ((?:sections? )?` + item + `(?:(?:, | and )` + item + `)*)`)
	bare     = regexp.MustCompile(`(?:protocol|design)\.md`)
	number   = regexp.MustCompile(item)
	// lineBreak matches a line break within a comment.
	lineBreak = regexp.MustCompile(`\s*\n\s*(?://|#)\s*`)
)

// cited returns the citations in a text, as "design I4" or "protocol section 9", and how often it names a page without a
// place.
func cited(text string) (places []string, without int) {
	text = lineBreak.ReplaceAllString(text, " ")
	without = len(bare.FindAllString(text, -1))
	for _, m := range citation.FindAllStringSubmatch(text, -1) {
		without--
		section := ""
		if strings.HasPrefix(m[2], "section") {
			section = "section "
		}
		for _, n := range number.FindAllString(m[2], -1) {
			places = append(places, m[1]+" "+section+n)
		}
	}
	return places, without
}

// there lists everything that can be cited.
func there(t *testing.T) map[string]bool {
	t.Helper()
	docs := filepath.Join(moduleRoot(t), "docs")
	found := make(map[string]bool)
	add := func(kind, text, pattern string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found[kind+m[1]] = true
		}
	}
	design, facts := read(t, filepath.Join(docs, "design.md")), read(t, filepath.Join(docs, "protocol-facts.md"))
	add("design ", design, `(?m)^\*\*(I\d+)\.\*\*`)
	add("design section ", design, `(?m)^## (\d+)\. `)
	add("protocol ", facts, `(?m)^\| (V\d+) \|`)
	add("protocol ", facts, `(?m)^(\d+\.\d+[a-z]?) `)
	add("protocol section ", facts, `(?m)^## (\d+)\. `)
	return found
}

func TestWhatCommentsCiteIsInTheRepository(t *testing.T) {
	found := there(t)
	root := moduleRoot(t)
	count := 0
	for _, file := range append(files(t, root, ".go"), files(t, root, ".txt")...) {
		if strings.HasSuffix(file, "citations_test.go") {
			continue
		}
		places, without := cited(read(t, file))
		count += len(places)
		for _, place := range places {
			if !found[place] {
				t.Errorf("%s cites %s, which is not there", file, place)
			}
		}
		if without > 0 && !strings.Contains(file, "internal/architecture") {
			t.Errorf("%s names a page %d times without saying where on it", file, without)
		}
	}
	if count < 250 {
		t.Errorf("only %d citations were found: the pattern is wrong", count)
	}
}

// The two pages of the protocol have the same rules.
func TestEveryRuleHasItsFacts(t *testing.T) {
	found := there(t)
	for prefix, n := range rules {
		for i := 1; i <= n; i++ {
			if rule := fmt.Sprintf("protocol %s%d", prefix, i); !found[rule] {
				t.Errorf("docs/protocol-facts.md has no %s", rule)
			}
		}
	}
}

func TestTheCheckOfCitationsCanFail(t *testing.T) {
	for text, want := range map[string]string{
		"// (protocol.md V1, 4.1).\n":                "[protocol V1 protocol 4.1] 0",
		"// see design.md\n\t// I4, protocol.md 3.5": "[design I4 protocol 3.5] 0",
		"// protocol.md sections 1 and 3":            "[protocol section 1 protocol section 3] 0",
		"# protocol.md 4.6b: a title":                "[protocol 4.6b] 0",
		"// says design.md":                          "[] 1",
	} {
		places, without := cited(text)
		if got := fmt.Sprint(places, without); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
