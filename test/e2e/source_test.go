package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// directory is a directory of resources, which has the mesh of a world in a file for each type.
type directory struct {
	*world
	path string
}

func (d directory) write(cluster string) { d.writeResources(d.path, d.mesh(cluster)) }

// writeResources writes resources to a directory, by rename: a file for each of four types, which says so if there is none of it.
func (w *world) writeResources(dir string, all []proto.Message) {
	w.Helper()
	w.check(os.MkdirAll(dir, 0o700))
	for _, typeURL := range []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType} {
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL}
		for _, m := range all {
			if packed := xdstest.Pack(m); packed.GetTypeUrl() == typeURL {
				resp.Resources = append(resp.Resources, packed)
			}
		}
		text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(resp)
		w.check(err)
		name := typeURL[strings.LastIndexByte(typeURL, '.')+1:]
		w.check(os.WriteFile(filepath.Join(dir, "."+name), text, 0o600))
		w.check(os.Rename(filepath.Join(dir, "."+name), filepath.Join(dir, name+".json")))
	}
}

// Nothing that happens to a directory of resources takes anything from Envoy: of `holdfast controlplane` and of --upstream
// file:, while they run and when they restart (findings F3 and F4).
func TestAccidentsOfADirectoryFailNoRequest(t *testing.T) {
	empty := func(d directory) {
		d.check(os.Rename(d.path, d.path+".away"))
		d.check(os.Mkdir(d.path, 0o700))
	}
	for _, accident := range []struct {
		name       string
		begin, end func(directory)
		said       string // by who starts meanwhile
	}{
		{"not mounted", empty, func(d directory) {
			d.check(os.Remove(d.path))
			d.check(os.Rename(d.path+".away", d.path))
		}, "as a volume that is not mounted"},
		{"moved away", func(d directory) { d.check(os.Rename(d.path, d.path+".away")) }, func(d directory) {
			d.check(os.Rename(d.path+".away", d.path))
		}, "no such file or directory"},
		{"copied from nothing", empty, func(d directory) {
			for _, name := range []string{"Listener", "Cluster", "RouteConfiguration", "ClusterLoadAssignment"} {
				time.Sleep(700 * time.Millisecond)
				d.check(os.Rename(d.path+".away/"+name+".json", d.path+"/"+name+".json"))
			}
		}, "as a volume that is not mounted"},
		{"half written", func(d directory) {
			text, err := os.ReadFile(d.path + "/Cluster.json")
			d.check(err)
			d.check(os.WriteFile(d.path+"/Cluster.json", text[:len(text)/2], 0o600))
		}, func(d directory) { d.write("c1") }, "Cluster.json:1"},
		{"a file of no bytes", func(d directory) { d.check(os.WriteFile(d.path+"/Listener.json", nil, 0o600)) },
			func(d directory) { d.write("c1") }, "Listener.json"},
	} {
		for i, restarts := range []bool{false, true} {
			for _, controlplane := range []bool{false, true} {
				name := fmt.Sprintf("%s, restart %v, controlplane %v", accident.name, restarts, controlplane)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, xdstest.Protocols()[i], xdstest.Delta)
					d := directory{w, w.path("resources")}
					d.write("c1")
					health := net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
					var cp *testbed.Process
					run := func() {
						var err error
						cp, err = testbed.Start("controlplane", w.path("cp.log"), holdfast(t), "controlplane", "--dir", d.path, "--listen", w.cpAddr, "--health", health)
						w.check(err)
						t.Cleanup(cp.Kill)
						w.check(cp.Wait(limit, func() error { return testbed.Dial("tcp", health) }))
					}
					if controlplane {
						w.cpAddr = net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
						run()
					} else {
						w.cpAddr = "file:" + d.path
					}
					w.start("--state-dir", w.path("state"))
					w.saved()
					traffic := testbed.StartTraffic(w.url, requestInterval)
					said := w.agent
					switch {
					case restarts && controlplane:
						cp.Kill()
						accident.begin(d)
						run()
						said = cp
					case restarts:
						w.agent.Kill()
						accident.begin(d)
						w.runAgent()
						said = w.agent
					default:
						accident.begin(d)
					}
					if restarts {
						w.check(said.Wait(limit, func() error {
							if log := said.Tail(200); !strings.Contains(log, accident.said) {
								return fmt.Errorf("%q is not in its log", accident.said)
							}
							return nil
						}))
					}
					if restarts && controlplane {
						w.check(testbed.Eventually(limit, func() error {
							code, text, err := testbed.Get("http://" + health + "/readyz")
							if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(text, accident.said)) {
								err = fmt.Errorf("/readyz: %d %q", code, text)
							}
							return err
						}))
					}
					time.Sleep(2 * time.Second)
					w.check(traffic.Stop())
					w.envoy.Kill() // a new one is served what there was
					w.envoy = w.startEnvoy()
					w.serves("v1")
					traffic = testbed.StartTraffic(w.url, requestInterval)
					accident.end(d)
					time.Sleep(2 * time.Second)
					w.check(traffic.Stop())
					d.write("c2")
					w.serves("v2")
				})
			}
		}
	}
}
