package e2e

import (
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// No key of the agent's own making, of its authority or of files that it serves is
// shown to a person, logged, or part of the last known good on disk.
func TestAKeyIsNotShownToAPerson(t *testing.T) {
	t.Parallel()
	p := newPods(t, xdstest.SotW, xdstest.Delta)
	identity := p.server.path("identity")
	p.identify(fromDir, fromDir, "--cert-lifetime", "6s")
	leaf := p.server.ca.Leaf(t, pkitest.URIs(p.server.id))
	byName := "file-cert:" + p.server.write("own/cert.pem", leaf.ChainPEM()) + "~" + p.server.write("own/key.pem", leaf.KeyPEM())
	p.server.with("--identity-dir", identity, "--state-dir", p.server.path("state"), "--secret-dir", p.server.path("own"))
	withFiles := xdstest.StaticCluster("with-files", p.server.v1.Addr)
	withFiles.TransportSocket = tlsSocket(&tlsv3.UpstreamTlsContext{
		CommonTlsContext: p.server.tls(byName, p.server.source, &tlsv3.CertificateValidationContext{}),
	})
	p.server.cp.Set(withFiles)
	p.start()

	keys := map[string][]byte{
		"of the authority": pki.EncodeKey(p.server.ca.Key),
		"of files":         leaf.KeyPEM(),
	}
	for i := range 3 {
		h := p.trust()
		if i > 0 {
			h = p.renewed(limit)
		}
		p.server.keeps(h)
		key, err := os.ReadFile(filepath.Join(identity, "default/tls.key"))
		p.check(err)
		keys[fmt.Sprintf("of certificate %x", h.server.SerialNumber)] = key
	}
	p.server.saved()

	admin := "unix:" + p.server.path("admin.sock")
	outputs := make(map[string]string)
	for _, command := range [][]string{{"dump"}, {"status"}, {"status", "-o", "json"}} {
		_, outputs["holdfast "+strings.Join(command, " ")] = run(t, append(slices.Clone(command), "--admin", admin)...)
	}
	for _, path := range []string{"/dump", "/dump?type=SDS&name=default", "/", "/status.json", "/metrics"} {
		got, err := p.server.ask(path)
		p.check(err)
		outputs["GET "+path] = got.body
	}
	log, err := os.ReadFile(p.server.agent.Log)
	p.check(err)
	outputs["the log"] = string(log)
	p.check(filepath.WalkDir(p.server.path("state"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		outputs["the state "+e.Name()] = string(content)
		return err
	}))

	for _, output := range []string{"holdfast dump", "GET /dump", "GET /dump?type=SDS&name=default"} {
		if !strings.Contains(outputs[output], `"default"`) {
			t.Errorf("%s is without the secret:\n%s", output, outputs[output])
		}
	}
	for _, output := range []string{"holdfast dump", "GET /dump"} {
		if !strings.Contains(outputs[output], byName) {
			t.Errorf("%s is without the secret of files:\n%s", output, outputs[output])
		}
	}
	for whose, key := range keys {
		for _, form := range formsOf(t, key) {
			for output, text := range outputs {
				if strings.Contains(text, form) {
					t.Errorf("%s shows the key %s: %q", output, whose, form)
				}
			}
		}
	}
	t.Logf("%d keys in %d outputs", len(keys), len(outputs))
}

// formsOf are texts by which a key on P-256, in PEM, is told wherever it is.
func formsOf(t T, key []byte) []string {
	t.Helper()
	signer, err := pki.ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private, ok := signer.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("a key of type %T", signer)
	}
	scalar, err := private.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(key), "\n")
	// The scalar is in the first line and the second. What is before is the same of
	// all keys, and what is after is the public key.
	return []string{
		lines[1], lines[2], base64.StdEncoding.EncodeToString(key)[128:192],
		string(scalar), hex.EncodeToString(scalar), base64.StdEncoding.EncodeToString(scalar),
	}
}
