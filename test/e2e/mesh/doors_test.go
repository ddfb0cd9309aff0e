package mesh

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Documents are for whoever has a certificate or may open the socket, and probes and metrics for everybody.
func TestTheAdminAddressIsForWhoMayUseIt(t *testing.T) {
	w := newWorld(t)
	operators, others := newAuthority(w, "operators"), newAuthority(w, "others")
	operators.issue("server")
	operators.issue("alice", "spiffe://cluster.local/ns/ops/sa/alice")
	operators.issue("bob", "spiffe://cluster.local/ns/ops/sa/bob")
	others.issue("mallory", "spiffe://cluster.local/ns/ops/sa/alice")
	health, outside := w.freeAddr(), w.admin
	w.args = append(w.args, "--health", health, "--tls-cert", w.path("server.pem"), "--tls-key", w.path("server.key"),
		"--admin-client-ca", w.path("operators.pem"), "--admin-allow", "spiffe://cluster.local/ns/ops/sa/alice")
	w.runMesh()
	w.check(w.mesh.Wait(limit, func() error {
		status, body, err := testbed.Get("http://" + health + "/ready")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	}))
	proof := func(name string) []string {
		return []string{"--admin-cert", w.path(name + ".pem"), "--admin-key", w.path(name + ".key"), "--admin-ca", w.path("operators.pem")}
	}
	for _, tc := range []struct {
		name  string
		flags []string
		code  int
		says  string
	}{
		{"who is named", proof("alice"), 0, "VirtualService"},
		{"who is not", proof("bob"), 1, "403 Forbidden: a certificate of [\"spiffe://cluster.local/ns/ops/sa/bob\"] may not use this address"},
		{"of another authority", proof("mallory"), 1, "no answer from"},
		{"in plaintext", nil, 1, "Give --admin-cert, --admin-key and --admin-ca"},
		{"a certificate alone", []string{"--admin-cert", w.path("alice.pem")}, 2, "--admin-cert and --admin-key go together"},
		{"an authority alone", []string{"--admin-ca", w.path("operators.pem")}, 2, "wants a certificate"},
		{"an authority that is none", append(proof("alice"), "--admin-ca", w.path("alice.key")), 2, "holds no PEM certificate"},
		{"an authority that did not sign the server's", append(proof("alice"), "--admin-ca", w.path("others.pem")), 1, "certificate signed by unknown authority"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, stderr := run(t, append([]string{"get", "--admin", outside}, tc.flags...)...)
			if code != tc.code || !strings.Contains(out+stderr, tc.says) {
				t.Errorf("exit code %d, %s%s", code, out, stderr)
			}
		})
	}
	for path, want := range map[string]int{"/metrics": 200, "/ready": 200, "/documents": 404, "/status": 404, "/diff": 404, "/debug/pprof/": 404} {
		if status, body, err := testbed.Get("http://" + health + path); err != nil || status != want {
			t.Errorf("%s on --health: %d, %v, %s", path, status, err, body)
		}
	}
	_, metrics, err := testbed.Get("http://" + health + "/metrics")
	w.check(err)
	if want := `holdfast_mesh_admin_refused_total{reason="identity"} 1`; !strings.Contains(metrics, want) {
		t.Errorf("metrics lack %s", want)
	}
}

// A socket is for its owner and root.
func TestTheAdminAddressIsASocket(t *testing.T) {
	w := newWorld(t)
	w.args = append(w.args, "--admin", "unix:"+w.own("mesh.sock"))
	w.runMesh()
	w.check(w.mesh.Wait(limit, func() error {
		if code, out, stderr := run(t, "get", "--admin", "unix:"+w.own("mesh.sock")); code != 0 || !strings.Contains(out, "VirtualService") {
			return fmt.Errorf("exit code %d, %s%s", code, out, stderr)
		}
		return nil
	}))
	if info, err := os.Stat(w.own("mesh.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if code, _, stderr := run(t, "get", "--admin", "unix:"+w.own("nothing.sock")); code != 1 || !strings.Contains(stderr, "no such file or directory") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	w.check(w.mesh.Stop(limit))
	if _, err := os.Stat(w.own("mesh.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}
