package etcd

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

var away = flag.Duration("away", 0, "how long the store is away at least in TestNothingChangesForAnybodyWhileTheStoreIsAway; docs/mesh-scale.md tells of 1h")

// The store is away. Again and again a server is restarted, and an agent, and a new proxy comes, of each form, with an agent and without: it is
// served. Requests go through a proxy that stays, and none fails. Logs stay short.
func TestNothingChangesForAnybodyWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	var servers []*server
	var flags []string
	for _, name := range []string{"one", "two"} {
		s := f.server(name, "--etcd", f.url(), "--state-dir", f.Path("state-"+name))
		servers, flags = append(servers, s), append(flags, "--upstream", s.xds)
	}
	agent := f.StartAgent("agent", append(flags, "--upstream-plaintext")...)
	// Each kind of proxy has a service and a port of its own: two Envoys on one port would share its connections.
	port := f.FreePort()
	other := strings.NewReplacer("name: web,", "name: new,", served, "new.test", fmt.Sprintf("number: %d", f.port), fmt.Sprintf("number: %d", port)).Replace(f.serviceText(f.v1))
	for _, text := range []string{other, sidecarOf("stays", served), sidecarOf("new", "new.test")} {
		write(t, f.client, read(f, text))
	}
	envoy := agent.Envoy("stays", "delta", labeled("web-1", "stays"))
	f.answers("v1")
	stop := f.load()
	f.stop()
	parts := 4
	if *away >= time.Minute {
		parts = 12
	}
	began := time.Now()
	for i := range parts {
		time.Sleep(time.Until(began.Add(*away * time.Duration(i) / time.Duration(parts))))
		servers[i%2].restart()
		if i%4 == 1 {
			f.Check(agent.Process.Stop(rig.Limit))
			agent.Restart()
		}
		name, form, as := fmt.Sprintf("new-%d", i), []string{"delta", "sotw"}[i/2%2], labeled(fmt.Sprintf("web-%d", i+2), "new")
		var fresh *testbed.Envoy
		if i%2 == 0 {
			fresh = f.DirectEnvoy(name, form, servers[i/2%2].xds, as)
		} else {
			fresh = agent.Envoy(name, form, as)
		}
		request := testbed.Request{URL: fmt.Sprintf("http://127.0.0.1:%d/", port), Host: "new.test"}
		f.Check(fresh.Wait(rig.Limit, func() error {
			status, body, err := request.Get()
			if err == nil && (status != 200 || body != "v1") {
				err = fmt.Errorf("%s is answered with %d %q", name, status, body)
			}
			return err
		}))
		f.NeverRejected(name, fresh)
		fresh.Kill()
		for _, s := range servers {
			if all := s.fleetOf(); all.Problem == "" {
				t.Errorf("%s knows all replicas without the store: %+v", s.name, all)
			}
		}
	}
	time.Sleep(time.Until(began.Add(*away)))
	took := time.Since(began)
	f.NeverRejected("stays", envoy)
	stop()
	for _, s := range servers {
		log, err := os.ReadFile(f.Path(s.name + ".log"))
		f.Check(err)
		t.Logf("%s has logged %d bytes in %s", s.name, len(log), took.Round(time.Second))
		// Once after each start, and every ten minutes.
		if n, most := strings.Count(string(log), "do not know of this one"), 1+parts/2+int(took/(10*time.Minute)); n > most {
			t.Errorf("%s says %d times that the others do not know of it, more than %d", s.name, n, most)
		}
	}
	f.store.start("data")
	write(t, f.client, f.service(f.v2))
	f.answers("v2")
	for _, s := range servers {
		f.Eventually(func() error {
			if all := s.fleetOf(); all.Problem != "" {
				return errors.New(all.Problem)
			}
			return nil
		})
	}
}

// labeled makes a bootstrap that of a proxy with an id and the label app.
func labeled(id, app string) func(*bootstrapv3.Bootstrap) {
	return func(b *bootstrapv3.Bootstrap) {
		as(id)(b)
		b.Node.Metadata.Fields["LABELS"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"app": structpb.NewStringValue(app)}})
	}
}

// sidecarOf is the Sidecar by which proxies with the label app have one service alone.
func sidecarOf(app, host string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: %s, namespace: shop}\n"+
		"spec: {workloadSelector: {labels: {app: %s}}, egress: [{hosts: [./%s]}]}\n", app, app, host)
}
