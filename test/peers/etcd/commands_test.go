package etcd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// meshBinary returns the holdfast-mesh under test.
func meshBinary(t testing.TB) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(rig.Holdfast(t)), "holdfast-mesh")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("this test needs the binary (%v): run `make build`", err)
	}
	return path
}

// command runs holdfast-mesh with the store, and returns its exit code and output.
type command struct {
	*store
	env []string
}

// run runs a command; standard input is a text.
func (c command) run(input string, args ...string) (code int, out, errs string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*rig.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, meshBinary(c), append(args, "--etcd", c.url())...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		c.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// says runs a command that must end with a code, and checks that its output has texts.
func (c command) says(code int, input, args string, texts ...string) string {
	c.Helper()
	got, out, errs := c.run(input, strings.Fields(args)...)
	if got != code {
		c.Errorf("%s: exit code %d, want %d\n%s%s", args, got, code, out, errs)
	}
	for _, text := range texts {
		if !strings.Contains(out+errs, text) {
			c.Errorf("%s: %q is missing in\n%s%s", args, text, out, errs)
		}
	}
	return out
}

const twoEntries = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: a, namespace: shop}
spec: {address: 10.0.0.1}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: b, namespace: shop}
spec: {address: 10.0.0.2}
`

func TestDocumentsAreAppliedShownAndDeleted(t *testing.T) {
	t.Parallel()
	c := command{store: newStore(t)}
	c.says(0, twoEntries, "apply -f -", "WorkloadEntry shop/a created", "WorkloadEntry shop/b created")
	c.says(0, twoEntries, "apply -f -", "WorkloadEntry shop/a unchanged")
	changed := strings.Replace(twoEntries, "10.0.0.1", "10.0.0.9", 1)
	c.says(0, changed, "apply --dry-run -f -", "WorkloadEntry shop/a configured (dry run)")
	c.says(1, changed, "diff -", "-  address: 10.0.0.1", "+  address: 10.0.0.9")
	c.says(0, twoEntries, "diff -")
	c.says(0, changed, "apply --author carol -f -", "WorkloadEntry shop/a configured", "WorkloadEntry shop/b unchanged")
	c.says(0, "", "get", "carol", "shop", "yes")
	yaml := c.says(0, "", "get workloadentries -n shop -o yaml", "address: 10.0.0.9")
	c.says(0, yaml, "apply -f -", "WorkloadEntry shop/a unchanged", "WorkloadEntry shop/b unchanged")
	c.says(0, "", "get workloadentry shop/a -o json", `"kind": "List"`)
	c.says(1, "", "get workloadentry shop/c", "etcd has no WorkloadEntry c in the namespace shop")
	c.says(2, "", "get pizza", "unknown kind")
	c.says(1, "", "delete workloadentry shop/a shop/c", "not found", "nothing is changed")
	c.says(0, "", "delete workloadentry shop/a", "WorkloadEntry shop/a deleted")
	c.says(1, twoEntries, "delete -f - -n shop", "not found") // a is gone already
	c.says(0, twoEntries, "delete -f - --ignore-not-found --dry-run", "WorkloadEntry shop/b deleted (dry run)")
	c.says(0, twoEntries, "delete -f - --ignore-not-found", "WorkloadEntry shop/b deleted")
}

func TestNothingIsWrittenUnlessEverythingIsValid(t *testing.T) {
	t.Parallel()
	c := command{store: newStore(t)}
	c.says(1, strings.Replace(twoEntries, "10.0.0.2", "a_b", 1), "apply -f -", "a_b", "standard input:9")
	c.says(1, "a: [", "apply -f -", "standard input")
	c.says(1, twoEntries, "apply -n bank -f -", "not in the namespace bank")
	c.says(1, "", "apply -f nowhere", "nowhere")
	c.says(2, "", "apply", "-f")
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := 'b'; i < 'k'; i++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	c.says(1, bomb, "apply -f -", "standard input")
	large := strings.Replace(twoEntries, "metadata: {name: a,", "metadata: {annotations: {a: "+strings.Repeat("x", 5<<20)+"}, name: a,", 1)
	c.says(1, large, "apply -f -", "divide it")
	c.says(1, large, "apply --dry-run -f -", "divide it")
	c.says(1, twoEntries+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: shop}\nstringData: {a: b}\n", "apply -f -", "--secret-key-file")
	c.says(1, twoEntries, "apply -f - -f "+c.file("same.yaml", twoEntries), "it is in", "too: that document")
	c.says(1, "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\n"+
		`spec: {hosts: [a.test], http: [{match: [{uri: {regex: "((a{30}){30}){30}"}}], route: [{destination: {host: a.test}}]}]}`, "apply -f -", "RE2")
	c.says(1, strings.Repeat("# a comment\n", 2<<20), "apply -f -", "standard input")
	all, err := c.open(etcd.Options{}).List(t.Context(), "", "")
	if err != nil || len(all.Documents) != 0 {
		t.Errorf("%d documents, %v", len(all.Documents), err)
	}
}

// What is shown can be applied again: a Secret without its content would empty the one that is stored.
func TestWhatIsShownHasNoSecrets(t *testing.T) {
	t.Parallel()
	c := command{store: newStore(t)}
	key := " --secret-key-file " + c.file("key", strings.Repeat("k", 32))
	c.says(0, "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: shop}\nstringData: {a: PRIVATE}\n", "apply -f -"+key)
	for _, output := range []string{"yaml", "json"} {
		shown := c.says(0, "", "get -o "+output+key, "1 left out")
		if strings.Contains(shown, "Secret") {
			t.Errorf("it shows %s", shown)
		}
	}
	c.says(0, "", "get"+key, "Secret", "yes")
	c.put("/holdfast/services/shop/bad", "{")
	c.says(1, "", "migrate --to "+filepath.Join(c.Dir, "to")+key, "/holdfast/services/shop/bad", "--skip-invalid")
	c.says(0, "", "migrate --skip-invalid --to "+filepath.Join(c.Dir, "to")+key, "0 documents copied")
	c.put("/holdfast/services/shop/a\x1b[31mRED\nFAKE", "{}")
	if _, out, errs := c.run("", "get"); strings.Contains(out+errs, "\x1b") || strings.Contains(out, "FAKE") {
		t.Errorf("it prints what somebody wrote:\n%q", out+errs)
	}
}

func TestPruningDeletesWhatIsInNoFile(t *testing.T) {
	t.Parallel()
	c := command{store: newStore(t)}
	client := c.open(etcd.Options{})
	for n := range 12 {
		write(t, client, entry(t, fmt.Sprintf("e%02d", n), "10.0.0.1"))
	}
	keep := ""
	for n := range 12 {
		if n >= 3 {
			keep += fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: e%02d, namespace: shop}\nspec: {address: 10.0.0.1}\n---\n", n)
		}
	}
	c.says(1, "# nothing\n", "apply --prune -f -", "nothing is changed")
	c.says(1, twoEntries, "apply --prune -f -", "wrong directory", "--max-prune-percent")
	c.says(0, keep, "apply --prune --dry-run -f -", "WorkloadEntry shop/e00 pruned (dry run)")
	c.says(0, keep, "apply --prune -f -", "WorkloadEntry shop/e00 pruned", "WorkloadEntry shop/e03 unchanged")
	all, err := client.List(t.Context(), config.WorkloadEntry, "")
	if err != nil || len(all.Documents) != 9 {
		t.Errorf("%d documents, %v", len(all.Documents), err)
	}
	c.says(0, twoEntries, "apply --prune --max-prune-percent 100 -n shop -f -", "WorkloadEntry shop/e11 pruned")
}

func TestAnEditorChangesADocument(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	client := s.open(etcd.Options{})
	write(t, client, entry(t, "a", "10.0.0.1"))
	edit := func(script string) command { return command{s, []string{"HOLDFAST_EDITOR=" + s.script(script)}} }
	edit(`sed -i s/10.0.0.1/10.0.0.2/ "$1"`).says(0, "", "edit workloadentry shop/a", "WorkloadEntry shop/a configured")
	edit(`true`).says(0, "", "edit workloadentry shop/a", "unchanged")
	edit(`: > "$1"`).says(0, "", "edit workloadentry shop/a", "unchanged")
	edit(`false`).says(1, "", "edit workloadentry shop/a", "nothing is changed")
	edit(`sed -i s/10.0.0.2/a_b/ "$1"`).says(1, "", "edit workloadentry shop/a", "not valid", "what you wrote is in")
	// What is wrong stands at the top when the editor is opened again.
	edit(`if grep -q '^#! .*a_b' "$1"; then sed -i s/a_b/10.0.0.3/ "$1"; else sed -i s/10.0.0.2/a_b/ "$1"; fi`).says(0, "", "edit workloadentry shop/a", "configured")
	edit(`sed -i 's/name: a/name: b/' "$1"`).says(1, "", "edit workloadentry shop/a", "not valid")
	doc, _, err := client.Read(t.Context(), keyOf("a"))
	if err != nil || addressOf(doc) != "10.0.0.3" {
		t.Errorf("%v %v", doc, err)
	}
	// Somebody else changes it meanwhile.
	inner := strings.ReplaceAll(fmt.Sprintf("%s apply --etcd %s --author mallory -f -", meshBinary(t), s.url()), "'", "")
	edit(`sed -i s/10.0.0.3/10.0.0.4/ "$1"; printf '%s' '`+strings.Replace(twoEntries, "10.0.0.1", "10.0.0.7", 1)+`' | `+inner+` >&2`).
		says(1, "", "edit workloadentry shop/a", "changed since it was read: by mallory", "what you wrote is in")
}

// script writes a program of the shell.
func (s *store) script(text string) string {
	s.Helper()
	path := s.file(fmt.Sprintf("editor-%d", time.Now().UnixNano()), "#!/bin/sh\n"+text+"\n")
	s.Check(os.Chmod(path, 0o700))
	return path
}

func TestDocumentsAreMigratedAndBack(t *testing.T) {
	t.Parallel()
	c := command{store: newStore(t)}
	key := c.file("key", strings.Repeat("k", 32))
	from := filepath.Join(c.Dir, "mesh")
	c.Check(os.Mkdir(from, 0o700))
	c.Check(os.WriteFile(filepath.Join(from, "all.yaml"), []byte(twoEntries+`---
apiVersion: v1
kind: Namespace
metadata: {name: shop, creationTimestamp: "2026-01-02T03:04:05Z"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "defaultConfig: {concurrency: 3}", meshNetworks: "networks: {}"}
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: shop}
stringData: {token: PRIVATE}
`), 0o600))
	c.says(1, "", "migrate --from "+from, "--secret-key-file")
	secrets := " --secret-key-file " + key
	c.says(0, "", "migrate --overwrite --from "+from+secrets, "6 documents copied to etcd")
	c.says(0, "", "migrate --from "+from+secrets, "0 documents copied to etcd, 6 were there")
	back := filepath.Join(c.Dir, "back")
	c.says(0, "", "migrate --dry-run --to "+back, "5 documents copied", "dry run", "1 Secrets left out")
	c.says(1, "", "migrate --with-secrets --to "+back, "Secret shop/token: ", "--secret-key-file")
	c.says(0, "", "migrate --to "+back+secrets, "5 documents copied", "1 Secrets left out")
	c.says(1, "", "migrate --to "+back+secrets, "not empty")
	c.Check(os.RemoveAll(back))
	c.says(0, "", "migrate --with-secrets --to "+back+secrets, "6 documents copied")
	c.says(0, "", "diff --prune "+back+secrets)
	info, err := os.Stat(filepath.Join(back, "shop", "secret-token.yaml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	c.Check(os.WriteFile(filepath.Join(back, "shop", "workloadentry-a.yaml"), []byte(strings.SplitN(strings.Replace(twoEntries, "10.0.0.1", "10.0.0.9", 1), "---", 2)[0]), 0o600))
	c.says(1, "", "migrate --from "+back+secrets, "says something else", "--overwrite")
}

func TestChangesAreWatched(t *testing.T) {
	t.Parallel()
	c := command{store: newStore(t)}
	client := c.open(etcd.Options{Author: "dora"})
	p := c.Start("watch", meshBinary(t), "watch", "workloadentries", "-n", "shop", "--etcd", c.url())
	n := 0
	c.Eventually(func() error { // until the watch is open
		n++
		write(c, client, entry(c, "a", fmt.Sprintf("10.0.0.%d", n)))
		if text := p.Tail(100); !strings.Contains(text, "WorkloadEntry shop/a configured by dora") {
			return fmt.Errorf("it shows\n%s", text)
		}
		return nil
	})
	c.put("/holdfast/workloadentries.networking.istio.io/shop/b", "{")
	c.Check(client.Delete(t.Context(), keyOf("a"), ""))
	c.Eventually(func() error {
		if text := p.Tail(100); !strings.Contains(text, "WorkloadEntry shop/a deleted") || !strings.Contains(text, "  /holdfast/workloadentries.networking.istio.io/shop/b: WorkloadEntry shop/b: ") {
			return fmt.Errorf("it shows\n%s", text)
		}
		return nil
	})
}
