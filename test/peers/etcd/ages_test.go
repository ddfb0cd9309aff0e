package etcd

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/mesh/config"
	dirsource "github.com/holdfast-xds/holdfast/mesh/config/dir"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// squatter is a ServiceEntry of the host of the tests in a namespace, with a time of creation.
func (f *fleet) squatter(namespace, created, backend string) string {
	f.Helper()
	text := strings.Replace(f.serviceText(backend), "namespace: shop", "namespace: "+namespace+", creationTimestamp: \""+created+"\"", 1)
	return f.file(namespace+".yaml", text)
}

// Findings M4 and S2: the host of two ServiceEntries is that one's which etcd has had for longer, whatever times their authors write. An
// upgrade from the version before, for which the times counted, changes no owner, and neither does a way to a directory, to another
// store, or back. A document that is deleted and created again is a new one.
func TestTheAgeOfADocumentIsTheStores(t *testing.T) {
	t.Parallel()
	before, _, err := testbed.Released(envoytest.Root(t), "holdfast-mesh")
	if err != nil {
		t.Log("without the version before: ", err)
		before = ""
	}
	f := &fleet{store: newStore(t)}
	f.client = f.open(etcd.Options{})
	f.port, f.v1, f.v2 = f.FreePort(), f.Backend("v1"), f.Backend("v2")
	evil := f.Backend("evil")
	does := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	apply := func(program, file string) {
		t.Helper()
		does(program, "apply", "--etcd", f.url(), "-f", file)
	}
	early := f.squatter("early", "2026-01-01T00:00:00Z", f.v1)
	first := meshBinary(t)
	if before != "" {
		first = before
	}
	apply(first, f.squatter("late", "2026-05-01T00:00:00Z", f.v2))
	apply(first, early)
	s := f.serverOf(first, "mesh", "--etcd", f.url(), "--state-dir", f.Path("state"))
	agent := f.StartAgent("agent", "--upstream", s.xds, "--upstream-plaintext")
	agent.Envoy("envoy", "delta", func(b *bootstrapv3.Bootstrap) {
		as("client-1")(b)
		b.Node.Metadata.Fields["NAMESPACE"] = structpb.NewStringValue("client")
	})
	if before != "" {
		if out := does(meshBinary(t), "validate", "--etcd", f.url()); !strings.Contains(out, "ServiceEntry early/web: warning: it has the host \""+served+"\" because its creationTimestamp is 2026-01-01") || !strings.Contains(out, "late/web") || !strings.Contains(out, "[HM0013]") {
			t.Errorf("before the upgrade: %s", out)
		}
	}
	f.answers("v1") // for the version before, the times count; and this one keeps them of a store that has no record of ages yet
	s.args[0] = meshBinary(t)
	stop := f.load()
	s.restart()
	stop()
	f.answers("v1")

	// owner waits until the server has taken in everything, and compares whose the host is for a client.
	sentinels := 0
	owner := func(want, text string) {
		t.Helper()
		sentinels++
		host := fmt.Sprintf("sentinel%d.test", sentinels)
		apply(meshBinary(t), f.file("sentinel.yaml", strings.NewReplacer(served, host, "name: web,", fmt.Sprintf("name: sentinel%d,", sentinels)).Replace(f.serviceText(f.v1))))
		explained := func(host string) string {
			out, _ := exec.Command(meshBinary(t), "explain", "--admin", s.admin, "--proxy", "client-1", fmt.Sprintf("%s:%d", host, f.port)).CombinedOutput()
			return string(out)
		}
		f.Eventually(func() error {
			if out := explained(host); !strings.Contains(out, "|"+host) {
				return errors.New(out)
			}
			return nil
		})
		_, port, err := net.SplitHostPort(want)
		f.Check(err)
		if out := explained(served); !strings.Contains(out, "127.0.0.1:"+port) || !strings.Contains(out, "asks for the same: ") {
			t.Errorf("%s: the host is another one's, or nothing is said of the others:\n%s", text, out)
		}
	}
	apply(meshBinary(t), f.squatter("evil", "1970-01-02T00:00:00Z", evil))
	owner(f.v1, "a tenant calls its document older than it is")
	f.answers("v1")

	s.args = append(s.args, "--document-age", "creation-timestamp")
	s.restart()
	f.answers("evil") // as before
	s.args = s.args[:len(s.args)-2]
	s.restart()
	f.answers("v1")

	// A directory, and a second store that is filled from it.
	dir := filepath.Join(f.Dir, "copy")
	does(meshBinary(t), "migrate", "--etcd", f.url(), "--to", dir)
	other := newStore(t)
	does(meshBinary(t), "migrate", "--etcd", other.url(), "--from", dir)
	copied, problems := dirsource.Input{Paths: []string{dir}}.Documents()
	second := follow(other.Rig, other.open(etcd.Options{}), "")
	second.synced()
	for name, reader := range map[string]func(namespace string) *config.Config{
		"a directory": func(namespace string) *config.Config {
			return copied[slices.IndexFunc(copied, func(doc *config.Config) bool { return doc.Namespace == namespace })]
		},
		"another store": func(namespace string) *config.Config {
			return second.Get(config.Key{Kind: config.ServiceEntry, Namespace: namespace, Name: "web"})
		},
	} {
		if early, late, evil := reader("early"), reader("late"), reader("evil"); config.Older(early, late) >= 0 || config.Older(late, evil) >= 0 {
			t.Errorf("%s has another order: %v, %v, %v (%v)", name, early.Age(), late.Age(), evil.Age(), problems)
		}
	}

	// A backup that is restored.
	f.stop()
	f.copyData("data", "backup")
	f.start("backup")
	owner(f.v1, "a backup was restored")
	f.answers("v1")

	does(meshBinary(t), "delete", "--etcd", f.url(), "-f", early)
	f.answers("v2")
	apply(meshBinary(t), early)
	owner(f.v2, "a document that was created again is the youngest but one of its author's words")
	f.answers("v2")
}
