package deploy

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

var everyRelease = flag.Bool("releases", false, "decode the manifests with the types of every release of Kubernetes that is supported, and not only of the oldest")

// fromTemplate is the line of a render of the chart that says which template follows; notes for people come before.
var fromTemplate = regexp.MustCompile(`(?m)^# \S+\.yaml$`)

// Every manifest, and what the chart makes, is of the oldest release of Kubernetes that is supported, and with -releases of every one. Fields are only added
// from release to release, so that the oldest says most.
func TestManifestsAreOfEveryReleaseOfKubernetes(t *testing.T) {
	repository := root(t)
	var manifests bytes.Buffer
	for _, dir := range append([]string{"monitoring", "injector"}, overlays...) {
		made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(repository, "deploy", dir))
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		text, err := made.AsYaml()
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		manifests.WriteString("---\n")
		manifests.Write(text)
	}
	renders, err := filepath.Glob(filepath.Join(repository, "test", "chart", "testdata", "*.golden.txt"))
	if err != nil || len(renders) == 0 {
		t.Fatalf("the chart's renders: %v %v", renders, err)
	}
	for _, file := range renders {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first := fromTemplate.FindIndex(text)
		if first == nil {
			t.Fatalf("%s has no template", file)
		}
		manifests.WriteByte('\n')
		manifests.Write(fromTemplate.ReplaceAll(text[first[0]:], []byte("---")))
	}
	programs := filepath.Join(repository, "test", "kubernetesapi")
	releases, err := filepath.Glob(filepath.Join(programs, "1.*.mod"))
	if err != nil || len(releases) < 5 {
		t.Fatalf("%v %v, want five releases at least", releases, err)
	}
	if !*everyRelease {
		releases = releases[:1]
	}
	decode := func(release, text string) (string, error) {
		cmd := exec.Command("go", "run", "-modfile="+filepath.Base(release), ".")
		cmd.Dir, cmd.Stdin = programs, strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, release := range releases {
		out, err := decode(release, manifests.String())
		if err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(release), err, out)
			continue
		}
		t.Log(strings.TrimSpace(out))
		if out, err := decode(release, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [], fromTheFuture: 1}\n"); err == nil || !strings.Contains(out, "fromTheFuture") {
			t.Errorf("%s: a field that it does not know: %v\n%s", filepath.Base(release), err, out)
		}
	}
}
