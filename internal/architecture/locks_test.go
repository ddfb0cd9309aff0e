package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// watched are the locks of the agent that the watchdog takes (internal/watchdog): while one of them is held, nothing is
// served or no change arrives.
var watched = []string{
	"agent/admin.Metrics.mu", "agent/cache.Cache.mu", "agent/controlplane.directory.mu", "agent/events.Log.mu",
	"agent/group.Group.mu", "agent/group.Set.mu", "agent/group.disconnects.mu", "agent/telemetry.tracer.mu",
	"downstream.Server.connected", "downstream.Server.mu", "downstream.stream.mu",
	"sds.Manager.mu", "upstream.Failover.mu", "agent/group.Presence.mu", "upstream.dialer.mu", "upstream.server.mu", "upstream.stream.mu", "upstream/file.Source.mu",
}

// unwatched are the other locks, and why nothing waits for them that serves.
var unwatched = map[string]string{
	"agent.Agent.rehearsing":         "held during a rehearsal, which takes seconds",
	"agent.keeper.mu":                "for the goroutine that writes to disk",
	"agent.keeper.writing":           "held while the disk is written",
	"agent.lifecycle.health":         "held while Envoy's admin interface is asked",
	"agent.lifecycle.mu":             "drains alone",
	"agent.publishing.mu":            "seeds alone",
	"agent/admin.Server.mu":          "status alone",
	"agent/envoy.Supervisor.judging": "held while a bootstrap is judged",
	"agent/envoy.Supervisor.mu":      "the child's status",
	"agent/envoy.child.mu":           "signals to the child",
	"agent/envoy.messages.mu":        "the child's output",
	"agent/istio.Server.mu":          "merged metrics alone",
	"agent/istio.slots.mu":           "merged metrics alone",
	"agent/probe.Prober.mu":          "the health of the workload",
	"agent/proof.process.mu":         "a rehearsal",
	"agent/shadow.Shadow.mu":         "a shadow serves nobody",
	"agent/store.Store.mu":           "held while the disk is written",
	"agent/store.Store.statusMu":     "status alone",
	"agent/store.Store.syncing":      "held while the disk is written",
	"downstream.Socket.mu":           "the socket's file",
	"sds/files.Dirs.mu":              "files of certificates",
	"sds/keystore.Store.mu":          "held while the disk is written",
	"sds/local.Dir.mu":               "held while certificates are signed",
	"upstream.dialing.mu":            "one attempt to connect, which has its time limit",
	"upstream.restWire.mu":           "one poll, which has its time limit",
}

// A new lock is either one that the watchdog takes, or has a reason why it need not.
func TestTheWatchdogTakesEachLockThatServingNeeds(t *testing.T) {
	root := filepath.Join("..", "..")
	found := make(map[string]bool)
	for _, dir := range []string{"agent", "downstream", "sds", "upstream"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			in, err := filepath.Rel(root, filepath.Dir(file))
			ast.Inspect(parsed, func(n ast.Node) bool {
				if spec, is := n.(*ast.TypeSpec); is {
					for _, field := range locksOf(spec.Type) {
						found[filepath.ToSlash(in)+"."+spec.Name.Name+"."+field] = true
					}
				}
				return true
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, lock := range slices.Sorted(maps.Keys(found)) {
		if taken, reason := slices.Contains(watched, lock), unwatched[lock]; taken == (reason != "") {
			t.Errorf("%s: is it one that serving needs? Then let the watchdog take it (TakeLocks), else say why not: in one of the two lists of this test", lock)
		}
	}
	for _, lock := range slices.Concat(watched, slices.Collect(maps.Keys(unwatched))) {
		if !found[lock] {
			t.Errorf("%s does not exist", lock)
		}
	}
}

// locksOf returns the fields of a struct that are locks.
func locksOf(of ast.Expr) (names []string) {
	s, is := of.(*ast.StructType)
	if !is {
		return nil
	}
	for _, field := range s.Fields.List {
		sel, is := field.Type.(*ast.SelectorExpr)
		if !is || sel.Sel.Name != "Mutex" && sel.Sel.Name != "RWMutex" {
			continue
		}
		if len(field.Names) == 0 {
			names = append(names, sel.Sel.Name)
		}
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}
