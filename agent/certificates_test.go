package agent

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

const workload = "spiffe://mesh.test/ns/shop/sa/web"

// certified makes the agent make certificates.
func (r *rig) certified() {
	r.cfg.Certificates = sds.Config{Sources: []sds.SourceConfig{{CA: "dev", Identities: []sds.Identity{{Names: pki.Names{ID: workload}}}}}}
}

// secret returns what a client was given last under a name; nil for nothing.
func secret(t *testing.T, c *xdstest.Client, name string) (out *tlsv3.Secret) {
	t.Helper()
	for _, answer := range c.Responses() {
		for _, w := range answer.Resources {
			if answer.Type == xds.SecretType && w.GetName() == name {
				out = &tlsv3.Secret{}
				if err := proto.Unmarshal(w.GetResource().GetValue(), out); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return out
}

func leaf(t *testing.T, s *tlsv3.Secret) *x509.Certificate {
	t.Helper()
	certs, err := pki.ParseCerts(s.GetTlsCertificate().GetCertificateChain().GetInlineBytes())
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

// What the agent makes and what the control plane has come together, each under its
// names; one that nobody has holds nothing up (as it does with SPIRE's agent).
func TestCertificatesAreServedBesideTheControlPlanes(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.certified()
		r.start()
		r.cp.Set(xdstest.Secret("of-the-cp", []byte("cert"), []byte("key")), xdstest.Secret("default", []byte("evil"), []byte("evil")))
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.SecretType, "default", "ROOTCA", "of-the-cp", "of-nobody", workload)
		r.quiet()
		r.holds(c, xds.SecretType, "ROOTCA", "default", "of-the-cp", workload)
		first := leaf(t, secret(t, c, "default"))
		if names, err := pki.NamesOf(first); err != nil || names.ID != workload {
			t.Errorf("%v, %v", names, err)
		}
		for _, e := range r.cp.Requests(xds.SecretType) {
			if text := e.String(); strings.Contains(text, "default") || strings.Contains(text, "ROOTCA") || strings.Contains(text, workload) {
				t.Errorf("the control plane was asked for what the agent makes: %s", text)
			}
		}
		// Renewed without a word of the control plane, which is away.
		r.cp.Stop()
		r.pass(14 * time.Hour)
		if second := leaf(t, secret(t, c, "default")); second.Equal(first) {
			t.Error("not renewed")
		}
		// Another kind of client has the same certificate.
		other := r.client(xdstest.ClientConfig{Node: node("web-2")})
		other.Subscribe(xds.SecretType, "default")
		r.quiet()
		if a, b := leaf(t, secret(t, c, "default")), leaf(t, secret(t, other, "default")); !a.Equal(b) {
			t.Error("two clients have two certificates")
		}
	})
}

// design.md I1: a CA that is away at the start.
func TestStreamsStaySilentUntilThereIsACertificate(t *testing.T) {
	dir := t.TempDir()
	inBothForms(t, func(r *rig) {
		r.certified()
		r.cfg.Certificates.Sources[0].CA = "dir:" + dir + "/" + string(r.form)
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.ListenerType)
		c.Subscribe(xds.SecretType, "default", "ROOTCA")
		r.pass(time.Minute)
		if got := len(c.Names(xds.SecretType)); got > 0 || c.Err() != nil {
			t.Errorf("%d secrets; stream: %v", got, c.Err())
		}
		r.ready(map[string]string{"socket": "", "configuration": "", "certificates": `no certificate "default" yet from dir:` + dir})
		// As `holdfast run --ca dev:DIR` makes it.
		maker, err := sds.New(sds.Config{Sources: []sds.SourceConfig{{CA: "dev:" + dir + "/" + string(r.form), Identities: r.cfg.Certificates.Sources[0].Identities}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(r.Context())
		ended := make(chan error)
		go func() { ended <- maker.Run(ctx) }()
		r.pass(time.Minute)
		cancel()
		<-ended
		r.holds(c, xds.SecretType, "ROOTCA", "default")
		r.ready(map[string]string{"socket": "", "configuration": "", "certificates": ""})
	})
}

// One request without a stream, of a client that nobody knew before.
func TestCertificatesAreFetched(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.certified()
		r.start()
		conn, err := r.down.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		got, err := secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(r.Context(), &discoveryv3.DiscoveryRequest{
			Node: node("fetching"), TypeUrl: xds.SecretType, ResourceNames: []string{"default", "of-nobody"},
		})
		if err != nil || len(got.GetResources()) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		var s tlsv3.Secret
		if err := proto.Unmarshal(got.GetResources()[0].GetValue(), &s); err != nil || s.GetName() != "default" {
			t.Errorf("%s, %v", s.GetName(), err)
		}
	})
}

// An agent without a control plane serves what it makes.
func TestCertificatesNeedNoControlPlane(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.certified()
		r.cfg.Upstreams = nil
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.SecretType, "default", "of-nobody")
		r.pass(time.Hour)
		r.holds(c, xds.SecretType, "default")
		r.ready(map[string]string{"socket": "", "certificates": ""})
	})
}

// No byte of a key leaves the agent but to Envoy: not in the log, the dump, CSDS,
// the status or the last known good.
func TestAKeyAppearsNowhere(t *testing.T) {
	dir := t.TempDir()
	inBothForms(t, func(r *rig) {
		log := &recorded{}
		r.cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r.certified()
		r.cfg.Node = node("xdstest") // as clientStatus expects it
		r.cfg.Store.Dir = filepath.Join(dir, string(r.form))
		r.cfg.Store.Keys = [][]byte{bytes.Repeat([]byte{1}, 32)} // so that secrets of upstreams are kept
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("xdstest")})
		c.Subscribe(xds.SecretType, "default")
		r.pass(14 * time.Hour)
		var shown bytes.Buffer
		for res := range r.agent.Resources(admin.Filter{}) {
			shown.Write(redact.JSON(res.Body))
		}
		if !strings.Contains(shown.String(), "certificate") {
			t.Errorf("the dump has no certificate: %s", shown.String())
		}
		for _, row := range r.clientStatus().GetGenericXdsConfigs() {
			b, err := proto.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(b)
			shown.WriteString(row.String())
		}
		if err := r.agent.Status().WriteText(&shown); err != nil {
			t.Error(err)
		}
		shown.WriteString(log.String())
		key := secret(t, c, "default").GetTlsCertificate().GetPrivateKey().GetInlineBytes()
		r.stop()
		synctest.Wait()
		// The state is encrypted, so it is read back: it has nothing of the secrets.
		kept, err := store.Read(store.Config{Dir: r.cfg.Store.Dir, Identity: identity(r.cfg.Node), Keys: r.cfg.Store.Keys})
		if err != nil || len(kept.Entries) == 0 {
			t.Fatalf("%+v, %v", kept, err)
		}
		for k := range kept.Entries {
			if k.Type == xds.SecretType {
				t.Errorf("on disk: %+v", k)
			}
		}
		hides(t, shown.String(), key)
	})
}

// hides fails if a text has any part of a key in PEM.
func hides(t *testing.T, text string, key []byte) {
	t.Helper()
	block, _ := pem.Decode(key)
	if block == nil {
		t.Fatalf("no key: %q", key)
	}
	lines := strings.Split(string(key), "\n")
	forms := append(lines[1:len(lines)-2], base64.StdEncoding.EncodeToString(key)[:48], string(block.Bytes[len(block.Bytes)-20:]))
	for _, form := range forms {
		if form != "" && strings.Contains(text, form) {
			t.Errorf("a part of the key is shown: %q", form)
		}
	}
}
