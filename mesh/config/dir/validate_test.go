package dir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestValidateFindsEveryProblemOfAllFiles(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml":     entry("a", "1") + wrong("b"),
		"sub/b.yaml": entry("a", "2"),
		"c.yaml":     "a: [\n",
		"d.yaml":     "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: d}\nspec:\n  hosts: [d]\n  tcp:\n  - match: [{sourceSubnet: 10.0.0.0/8}]\n    route:\n    - destination:\n        host: none\n",
		".e.yaml":    "{",
		"f.txt":      "{",
		"lone.yaml":  entry("lone", "1"),
	} {
		write(t, filepath.Join(root, name), text)
	}
	check(t, os.Symlink(".", filepath.Join(root, "sub", "circle")))
	check(t, os.Symlink("sub", filepath.Join(root, "twice")))
	check(t, syscall.Mkfifo(filepath.Join(root, "pipe.yaml"), 0o600))
	var got []string
	for _, p := range Validate(filepath.Join(root, "sub"), root, filepath.Join(root, "none")) {
		got = append(got, strings.ReplaceAll(p.String(), root, "ROOT"))
	}
	const circle = "circle: the link leads to a directory that it is in: it is not read"
	want := []string{
		"ROOT/a.yaml:1: WorkloadEntry default/a: it is in ROOT/sub/b.yaml:1 too: that document is used, and this is not",
		`ROOT/a.yaml:11: WorkloadEntry default/b: spec.address: "a_b" is neither an IP address nor a host`,
		"ROOT/c.yaml:1: did not find expected node content",
		"ROOT/d.yaml:7: VirtualService default/d: spec.tcp[0].match[0].sourceSubnet: warning: not supported: reserved: Istio does not implement it [HM0101]",
		`ROOT/d.yaml:10: VirtualService default/d: spec.tcp[0].route[0].destination.host: warning: there is no service "none.default.svc.cluster.local" [HM0201]`,
		"ROOT/none: no such file or directory",
		"ROOT/pipe.yaml: it is a named pipe: name a regular file",
		"ROOT/twice/b.yaml:1: WorkloadEntry default/a: it is in ROOT/sub/b.yaml:1 too: that document is used, and this is not",
		"ROOT/twice/" + circle,
	}
	got = slices.DeleteFunc(got, func(text string) bool { return strings.HasPrefix(text, "ROOT/sub/") })
	if !slices.Equal(got, want) {
		t.Errorf("problems\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	if got := Validate(filepath.Join(root, "lone.yaml")); len(got) > 0 {
		t.Errorf("a valid file has problems: %v", got)
	}
}
