package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// address is a log handler that records the address of the control plane.
type address chan string

func (a address) Write(p []byte) (int, error) {
	if _, after, ok := strings.Cut(string(p), " addr="); ok {
		addr, _, _ := strings.Cut(after, " ")
		a <- addr
	}
	return len(p), nil
}

// listening runs a control plane with the cluster a on a real socket, and returns
// its address.
func listening(t *testing.T, cfg Config) string {
	t.Helper()
	cfg.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(cfg.Dir, "a.yaml"), []byte(cluster("a", "1s")), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := make(address, 1)
	cfg.Log = slog.New(slog.NewTextHandler(addr, nil))
	cp, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- cp.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	select {
	case a := <-addr:
		return a
	case err := <-ended:
		ended <- err
		t.Fatalf("ended with %v", err)
		return ""
	}
}

// askFor returns nil if a client receives the cluster a.
func askFor(t *testing.T, form xdstest.Protocol, target string, creds credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: form})
	defer c.Close()
	if err := c.Connect(t.Context()); err != nil {
		return err
	}
	c.Subscribe(xds.ClusterType)
	if err := c.Wait(t.Context(), func() bool { return c.Err() != nil || len(c.Names(xds.ClusterType)) > 0 }); err != nil {
		return err
	}
	return c.Err()
}

func TestItServesOverTCPAndAUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := "unix:" + filepath.Join(dir, "cp.sock")
	listening(t, Config{Listen: socket})
	for _, target := range []string{listening(t, Config{Listen: "127.0.0.1:0"}), socket} {
		for _, form := range xdstest.Protocols() {
			if err := askFor(t, form, target, insecure.NewCredentials()); err != nil {
				t.Errorf("%s, %s: %v", target, form, err)
			}
		}
	}
}

// certificate writes a certificate of its own authority for the loopback address,
// and its key.
func certificate(t *testing.T, name string) (cert, key string) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	check(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	check(err)
	cert, key = filepath.Join(t.TempDir(), name+".pem"), filepath.Join(t.TempDir(), name+".key")
	check(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}

// trusting is a client's TLS that trusts a server's certificate and shows its own,
// if it has one.
func trusting(t *testing.T, server, cert, key string) *tls.Config {
	t.Helper()
	content, err := os.ReadFile(server)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{RootCAs: x509.NewCertPool()}
	conf.RootCAs.AppendCertsFromPEM(content)
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf
}

func TestItServesOverTLS(t *testing.T) {
	cert, key := certificate(t, "server")
	mine, myKey := certificate(t, "client")
	other, otherKey := certificate(t, "other")
	open := listening(t, Config{Listen: "127.0.0.1:0", TLSCert: cert, TLSKey: key})
	guarded := listening(t, Config{Listen: "127.0.0.1:0", TLSCert: cert, TLSKey: key, TLSClientCA: mine})
	old := trusting(t, cert, "", "")
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for name, tc := range map[string]struct {
		addr   string
		creds  credentials.TransportCredentials
		served bool
	}{
		"TLS":                            {open, credentials.NewTLS(trusting(t, cert, "", "")), true},
		"plaintext to TLS":               {open, insecure.NewCredentials(), false},
		"a client that trusts another":   {open, credentials.NewTLS(trusting(t, mine, "", "")), false},
		"TLS 1.1":                        {open, credentials.NewTLS(old), false},
		"a client with its certificate":  {guarded, credentials.NewTLS(trusting(t, cert, mine, myKey)), true},
		"a client without a certificate": {guarded, credentials.NewTLS(trusting(t, cert, "", "")), false},
		"a client with another's":        {guarded, credentials.NewTLS(trusting(t, cert, other, otherKey)), false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, form := range xdstest.Protocols() {
				if err := askFor(t, form, tc.addr, tc.creds); (err == nil) != tc.served {
					t.Errorf("%s: %v, want served: %v", form, err, tc.served)
				}
			}
		})
	}
}

// Certificates are rotated without a restart: the next connection gets the new one. What cannot be read leaves the last one in use.
func TestTheFilesOfTLSAreReadForEachConnection(t *testing.T) {
	cert, key := certificate(t, "server")
	mine, myKey := certificate(t, "client")
	addr := listening(t, Config{Listen: "127.0.0.1:0", TLSCert: cert, TLSKey: key, TLSClientCA: mine})
	served := func(what string, trusted, shown, shownKey string, want bool) {
		t.Helper()
		if err := askFor(t, xdstest.Delta, addr, credentials.NewTLS(trusting(t, trusted, shown, shownKey))); (err == nil) != want {
			t.Errorf("%s: %v, want served: %v", what, err, want)
		}
	}
	before, _ := certificate(t, "before")
	copyTo := func(to, from string) {
		t.Helper()
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyTo(before, cert)
	served("at first", before, mine, myKey, true)
	renewed, renewedKey := certificate(t, "renewed")
	other, otherKey := certificate(t, "other")
	copyTo(cert, renewed)
	copyTo(mine, other)
	copyTo(key, renewedKey)
	served("renewed", renewed, other, otherKey, true)
	served("by whom trusts the one before", before, other, otherKey, false)
	if err := os.WriteFile(cert, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	served("rubbish", renewed, other, otherKey, true)
}

func TestABadConfigurationIsRefused(t *testing.T) {
	cert, key := certificate(t, "server")
	_, otherKey := certificate(t, "other")
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"no directory":               {Config{Listen: ":0"}, "no directory: name one with --dir"},
		"no port":                    {Config{Dir: "x", Listen: "localhost"}, `--listen "localhost": want host:port or unix:PATH`},
		"no path":                    {Config{Dir: "x", Listen: "unix:"}, "the path is missing"},
		"a client CA without a cert": {Config{Dir: "x", Listen: ":0", TLSClientCA: cert}, "--tls-client-ca needs --tls-cert and --tls-key"},
		"a missing certificate":      {Config{Dir: "x", Listen: ":0", TLSCert: missing, TLSKey: key}, "--tls-cert, --tls-key: open " + missing},
		"another certificate's key":  {Config{Dir: "x", Listen: ":0", TLSCert: cert, TLSKey: otherKey}, "--tls-cert, --tls-key: tls: private key does not match"},
		"a missing client CA":        {Config{Dir: "x", Listen: ":0", TLSCert: cert, TLSKey: key, TLSClientCA: missing}, "--tls-client-ca: open " + missing},
		"a client CA that is none":   {Config{Dir: "x", Listen: ":0", TLSCert: cert, TLSKey: key, TLSClientCA: key}, "holds no PEM certificate"},
		"a bad admin address":        {Config{Dir: "x", Listen: ":0", Admin: "x"}, "--admin: "},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestItDoesNotStartWithoutItsAddress(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	cp, err := New(Config{Dir: t.TempDir(), Listen: busy.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := cp.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--listen: listen tcp "+busy.Addr().String()+": bind: address already in use") {
		t.Errorf("ended with %v", err)
	}
}
