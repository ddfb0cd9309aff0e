package upstream

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

// expect fails unless err contains the text; if the text is "", unless err is nil.
func expect(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Errorf("refused: %v", err)
	case text != "" && err == nil:
		t.Errorf("accepted; want an error with %q", text)
	case text != "" && !strings.Contains(err.Error(), text):
		t.Errorf("error %q, want one with %q", err, text)
	}
}

func withTLS(conf *tls.Config) grpc.ServerOption { return grpc.Creds(credentials.NewTLS(conf)) }

func TestAControlPlaneMustBeWhoItShouldBe(t *testing.T) {
	const id = "spiffe://mesh.test/ns/control/sa/plane"
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	_, addr := controlPlane(t, withTLS(ca.server(ca.issue("server", "plane.test", id, "127.0.0.1"))))
	_, nameless := controlPlane(t, withTLS(ca.server(ca.issue("nameless", "plane.test"))))
	missing := filepath.Join(t.TempDir(), "missing.pem")
	garbage := filepath.Join(t.TempDir(), "garbage.pem")
	ca.check(os.WriteFile(garbage, []byte("no certificate"), 0o600))
	for _, tc := range []struct {
		name     string
		addr     string
		security dial.Security
		want     string // part of the error; "" for none
	}{
		{"its authority", addr, dial.Security{CA: ca.file}, ""},
		{"another authority", addr, dial.Security{CA: other.file}, "certificate signed by unknown authority"},
		{"the system's authorities", addr, dial.Security{}, "certificate signed by unknown authority"},
		{"an authority that is not there", addr, dial.Security{CA: missing}, "--upstream-ca: open " + missing},
		{"a file without a certificate", addr, dial.Security{CA: garbage}, "--upstream-ca: " + garbage + " holds no PEM certificate"},
		{"the address is not in the certificate", nameless, dial.Security{CA: ca.file}, "127.0.0.1"},
		{"a server name in the certificate", nameless, dial.Security{CA: ca.file, ServerName: "plane.test"}, ""},
		{"a server name that is not", addr, dial.Security{CA: ca.file, ServerName: "else.test"}, "certificate is valid for plane.test, not else.test"},
		{"a DNS name", nameless, dial.Security{CA: ca.file, SANs: []string{"plane.test"}}, ""},
		{"a URI", addr, dial.Security{CA: ca.file, SANs: []string{id}}, ""},
		{"an IP address", addr, dial.Security{CA: ca.file, SANs: []string{"127.0.0.1"}}, ""},
		{"one of several names", addr, dial.Security{CA: ca.file, SANs: []string{"else.test", id}}, ""},
		{"none of several names", addr, dial.Security{CA: ca.file, SANs: []string{"else.test", "spiffe://mesh.test/ns/control/sa/other"}},
			"certificate names plane.test, " + id + ", 127.0.0.1, and none of them is one of --upstream-san else.test, spiffe://mesh.test/ns/control/sa/other"},
		{"part of a name", addr, dial.Security{CA: ca.file, SANs: []string{"plane"}}, "none of them is one of --upstream-san plane"},
		{"the right name of another authority", addr, dial.Security{CA: other.file, SANs: []string{id}}, "certificate signed by unknown authority"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			expect(t, attempt(t, Config{Addr: tc.addr, Security: tc.security}), tc.want)
		})
	}
}

func TestAServerWithoutTLSIsRejectedUnlessPlaintextIsSet(t *testing.T) {
	_, addr := controlPlane(t)
	expect(t, attempt(t, Config{Addr: addr}), "tls: first record does not look like a TLS handshake")
	expect(t, attempt(t, Config{Addr: addr, Security: dial.Security{Plaintext: true}}), "")
}

func TestTLSBelow12IsRejected(t *testing.T) {
	ca := newAuthority(t, "ca")
	for version, want := range map[uint16]string{
		tls.VersionTLS11: "protocol version not supported",
		tls.VersionTLS12: "",
		tls.VersionTLS13: "",
	} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			conf := ca.server(ca.issue("server", "127.0.0.1"))
			conf.MinVersion, conf.MaxVersion = version, version
			_, addr := controlPlane(t, withTLS(conf))
			expect(t, attempt(t, Config{Addr: addr, Security: dial.Security{CA: ca.file}}), want)
		})
	}
}

func TestAClientCertificateIsShownToAServerThatAsksForOne(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	conf := ca.server(ca.issue("server", "127.0.0.1"))
	conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
	_, addr := controlPlane(t, withTLS(conf))
	mine, foreign := ca.issue("client"), other.issue("foreign")
	missing := filepath.Join(t.TempDir(), "missing")
	for _, tc := range []struct {
		name      string
		cert, key string
		want      string
	}{
		{"its own", mine.cert, mine.key, ""},
		// The server sends the reason in an alert, which may be lost with the connection.
		{"none", "", "", "opening the ADS stream: "},
		{"one of another authority", foreign.cert, foreign.key, "opening the ADS stream: "},
		{"the key of another certificate", mine.cert, foreign.key, "--upstream-cert, --upstream-key: tls: private key does not match public key"},
		{"a key that is not there", mine.cert, missing, "--upstream-cert, --upstream-key: open " + missing},
		{"a certificate that is not there", missing, mine.key, "--upstream-cert, --upstream-key: open " + missing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			expect(t, attempt(t, Config{Addr: addr, Security: dial.Security{CA: ca.file, Cert: tc.cert, Key: tc.key}}), tc.want)
		})
	}
}

// Files are read at every attempt, so that the next one uses a rotated certificate.
func TestARotatedAuthorityIsReadAtTheNextAttempt(t *testing.T) {
	old, renewed := newAuthority(t, "old"), newAuthority(t, "renewed")
	_, addr := controlPlane(t, withTLS(renewed.server(renewed.issue("server", "127.0.0.1"))))
	a := source(t, Config{Addr: addr, Security: dial.Security{CA: old.file}})
	expect(t, a.Run(t.Context(), everyCluster(), func() error { return nil }), "unknown authority")
	content, err := os.ReadFile(renewed.file)
	old.check(err)
	old.check(os.WriteFile(old.file, content, 0o600))
	if err := a.Run(t.Context(), everyCluster(), func() error { return errPreferred }); err != errPreferred {
		t.Errorf("ended with %v, want an answer", err)
	}
}

func TestSettingsThatContradictEachOtherAreRejected(t *testing.T) {
	for _, tc := range []struct {
		name     string
		security dial.Security
		want     string
	}{
		{"a certificate without a key", dial.Security{Cert: "c"}, "--upstream-cert and --upstream-key go together"},
		{"a key without a certificate", dial.Security{Key: "k"}, "--upstream-cert and --upstream-key go together"},
		{"plaintext with an authority", dial.Security{Plaintext: true, CA: "ca"}, "--upstream-ca has no meaning with --upstream-plaintext"},
		{"plaintext with a certificate", dial.Security{Plaintext: true, Cert: "c", Key: "k"}, "--upstream-cert has no meaning"},
		{"plaintext with a server name", dial.Security{Plaintext: true, ServerName: "n"}, "--upstream-server-name has no meaning"},
		{"plaintext with a SAN", dial.Security{Plaintext: true, SANs: []string{"n"}}, "--upstream-san has no meaning"},
		{"plaintext with a token", dial.Security{Plaintext: true, TokenFile: "t"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := NewADS(Config{Addr: "127.0.0.1:1", Security: tc.security})
			expect(t, err, tc.want)
		})
	}
}
