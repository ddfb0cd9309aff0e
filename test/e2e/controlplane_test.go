package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Finding B4. The Envoy of one machine cannot have a port and refuses a listener: the control plane
// keeps the old one for that machine, also after a restart, and gives others the new one.
func TestTheControlPlaneWithholdsFromOneMachineOnlyWhatItNACKed(t *testing.T) {
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			w := newWorld(t, form, form)
			w.check(os.Mkdir(w.path("resources"), 0o700))
			set := func(port int) {
				var resp discoveryv3.DiscoveryResponse
				w.port = port
				for _, m := range w.mesh("c1") {
					resp.Resources = append(resp.Resources, xdstest.Pack(m))
				}
				wire, err := proto.Marshal(&resp)
				w.check(err)
				w.check(os.WriteFile(w.path("resources/mesh.pb.new"), wire, 0o600))
				w.check(os.Rename(w.path("resources/mesh.pb.new"), w.path("resources/mesh.pb")))
			}
			first := w.port
			set(first)
			socket := w.path("xds.sock")
			cp, err := testbed.Start("controlplane", w.path("cp.log"), holdfast(t), "controlplane", "--dir", w.path("resources"),
				"--listen", "unix:"+socket, "--admin", "unix:"+w.path("admin.sock"))
			w.check(err)
			t.Cleanup(cp.Kill)
			w.check(cp.Wait(limit, func() error { return testbed.Dial("unix", socket) }))

			machine := func(node string) *testbed.Envoy {
				adminAddr := net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
				file := w.path(fmt.Sprintf("%s-%d.json", node, w.freePort()))
				out, err := exec.Command(holdfast(t), "bootstrap", "--out", file, "--node-id", node, "--node-cluster", "e2e",
					"--socket", socket, "--xds-protocol", string(form), "--envoy-admin", adminAddr).CombinedOutput()
				if err != nil {
					t.Fatalf("holdfast bootstrap: %v\n%s", err, out)
				}
				e, err := testbed.StartEnvoy(envoytest.Binary(t), file, adminAddr, file+".log")
				w.check(err)
				return w.keep(e)
			}
			servesOn := func(e *testbed.Envoy, port int) {
				t.Helper()
				w.check(e.Wait(limit, func() error {
					got, listeners, err := testbed.Get("http://" + e.Admin + "/listeners?format=text")
					want := fmt.Sprintf("ingress::127.0.0.1:%d\n", port)
					if err == nil && (got != http.StatusOK || listeners != want) {
						err = fmt.Errorf("it listens on %q, want %q", listeners, want)
					}
					return err
				}))
			}
			rejected := func(node string, want int) {
				t.Helper()
				w.check(testbed.Eventually(limit, func() error {
					s, err := w.client().Status(t.Context())
					if err != nil {
						return err
					}
					n := 0
					for _, g := range s.Groups {
						for _, ty := range g.Types {
							if g.NodeID == node && ty.TypeURL == xds.ListenerType {
								n += ty.Resources[xds.Nacked.String()]
							}
						}
					}
					if n != want {
						return fmt.Errorf("%d listeners rejected by %s, want %d", n, node, want)
					}
					return nil
				}))
			}

			a := machine("machine-a")
			servesOn(a, first)
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			w.check(err)
			second := taken.Addr().(*net.TCPAddr).Port
			set(second)
			rejected("machine-a", 1)
			w.check(taken.Close())
			b := machine("machine-b")
			servesOn(b, second)
			servesOn(a, first)
			rejected("machine-b", 0)

			a.Kill()
			a = machine("machine-a")
			servesOn(a, second) // the address is free, and it is offered to it again (design.md I7)
			servesOn(b, second)
			set(first)
			servesOn(b, first)
			rejected("machine-a", 0)
			servesOn(a, first)
		})
	}
}
