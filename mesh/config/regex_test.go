package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// envoysWord returns the lines of a file of what Envoy 1.36 and 1.40 have said when they were asked.
func envoysWord(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "envoy", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func TestRegularExpressionsAreThoseOfEnvoy(t *testing.T) {
	for _, text := range envoysWord(t, "regexes-taken.txt") {
		if problem := regexProblem(text); problem != "" {
			t.Errorf("%s %s", text, problem)
		}
	}
	for _, text := range envoysWord(t, "regexes-refused.txt") {
		if regexProblem(text) == "" {
			t.Errorf("%.80s is accepted", text)
		}
	}
}

// The number of instructions is not below that of RE2 in Envoy 1.36, which reads UTF-8, and in 1.40, which reads bytes, and at most twice the
// larger one.
func TestTheSizeOfARegularExpressionIsThatOfEnvoy(t *testing.T) {
	for text, of := range map[string][2]int{
		`[a]{1000}`: {1004, 1004}, `[acegi]{1000}`: {5004, 5004}, `.{1000}`: {8004, 2004}, `[^a]{1000}`: {8004, 2004}, `\w{1000}`: {3004, 3004}, `(?i)a{1000}`: {1004, 1004},
		`(?i)[a-z]{1000}`: {6004, 1004}, `é{1000}`: {2004, 1005}, `\pN{100}`: {23304, 404}, `\p{Greek}{1000}`: {62004, 0}, `(?s).{1000}`: {7004, 1004}, `(a|b){1000}`: {3004, 3004},
		`(?:ab|cd){1000}`: {4004, 4004}, `(a?){1000}`: {4004, 4004}, `\p{Latin}{100}`: {7804, 604}, `\PL{100}`: {119804, 804}, `[à-é]{1000}`: {2004, 1004}, `\W{1000}`: {11004, 5004},
	} {
		inUTF8, err := regexSize(text, utf8Cost)
		inBytes, err2 := regexSize(latin1(text), byteCost)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		most := max(of[0], of[1])
		if got := max(inUTF8, inBytes); got < most-4 || got > most*2 {
			t.Errorf("%s: %d in UTF-8 and %d in bytes, Envoy has %v", text, inUTF8, inBytes, of)
		}
	}
}
