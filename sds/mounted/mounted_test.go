package mounted_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/mounted"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// bench watches a volume in virtual time and records the calls.
type bench struct {
	*testing.T
	volume *pkitest.Volume
	root   *pkitest.CA
	mid    *pkitest.CA

	mu    sync.Mutex
	calls []string
	last  pki.Update
}

// withVolume runs a test with a source that watches a volume with these files.
func withVolume(t *testing.T, files func(b *bench) content, test func(b *bench)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := &bench{T: t, volume: pkitest.NewVolume(t), root: pkitest.Root(t, "root", time.Now())}
		b.mid = b.root.Intermediate(t, "mid")
		b.publish(files(b))
		s, err := mounted.New(b.volume.Dir)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, b.update, b.fault) }()
		b.advance()
		test(b)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		b.expectCalls()
	})
}

func (b *bench) update(u pki.Update) {
	var bundles []string
	for _, domain := range slices.Sorted(maps.Keys(u.Bundles)) {
		var names []string
		for _, c := range u.Bundles[domain] {
			names = append(names, c.Subject.CommonName)
		}
		bundles = append(bundles, fmt.Sprintf(" %q trusts %s", domain, strings.Join(names, ",")))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = u
	b.calls = append(b.calls, fmt.Sprintf("update %v of %d%s", u.Pairs[0].Leaf().Subject.CommonName, len(u.Pairs[0].Chain), strings.Join(bundles, "")))
}

func (b *bench) fault(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.calls = append(b.calls, "mended")
		return
	}
	b.calls = append(b.calls, "fault "+strings.ReplaceAll(err.Error(), b.volume.Dir, "DIR"))
}

// expectCalls checks the calls since the last check, and that faults contain the wanted texts.
func (b *bench) expectCalls(want ...string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.EqualFunc(b.calls, want, func(call, want string) bool {
		rest, isFault := strings.CutPrefix(want, "fault ")
		return call == want || isFault && strings.HasPrefix(call, "fault ") && strings.Contains(call, rest)
	}) {
		b.Fatalf("got  %q\nwant %q", b.calls, want)
	}
	b.calls = nil
}

// advance waits until a change of the files was read.
func (b *bench) advance() {
	time.Sleep(2 * files.Period)
	synctest.Wait()
}

type content = map[string][]byte

func (b *bench) publish(files content) {
	b.Helper()
	b.volume.Publish(b, files)
}

// named makes a certificate whose subject tells it from others.
func (b *bench) named(name string, options ...pkitest.Option) pki.Pair {
	b.Helper()
	return b.mid.Leaf(b, append([]pkitest.Option{func(c *x509.Certificate) { c.Subject.CommonName = name }}, options...)...)
}

// secret returns the files of a secret of type kubernetes.io/tls.
func (b *bench) secret(p pki.Pair) content {
	return content{"tls.crt": p.ChainPEM(), "tls.key": p.KeyPEM(), "ca.crt": pki.EncodeCerts(b.root.Roots())}
}

// with returns the files with one replaced, or removed with nil.
func with(files content, name string, text []byte) content {
	if text == nil {
		delete(files, name)
	} else {
		files[name] = text
	}
	return files
}

const good = `update a of 2 "example.org" trusts root`

func TestCertificateIsReadFromEachLayout(t *testing.T) {
	for _, tc := range []struct{ name, cert, key, roots string }{
		{"a secret of Kubernetes", "tls.crt", "tls.key", "ca.crt"},
		{"Istio", "cert-chain.pem", "key.pem", "root-cert.pem"},
		{"spiffe-helper", "svid.pem", "svid_key.pem", "svid_bundle.pem"},
		{"GKE", "certificates.pem", "private_key.pem", "ca_certs.pem"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var pair pki.Pair
			withVolume(t, func(b *bench) content {
				pair = b.named("a")
				return content{tc.cert: pair.ChainPEM(), tc.key: pair.KeyPEM(), tc.roots: pki.EncodeCerts(b.root.Roots())}
			}, func(b *bench) {
				b.expectCalls(good)
				if got := b.last.Pairs; len(got) != 1 || !bytes.Equal(got[0].ChainPEM(), pair.ChainPEM()) || !bytes.Equal(got[0].KeyPEM(), pair.KeyPEM()) {
					b.Error("it is another pair")
				}
			})
		})
	}
}

func TestOfSeveralLayoutsTheFirstCounts(t *testing.T) {
	withVolume(t, func(b *bench) content {
		files, other := b.secret(b.named("a")), b.named("b")
		files["cert-chain.pem"], files["key.pem"] = other.ChainPEM(), other.KeyPEM()
		files["svid.pem"] = []byte("damaged")
		return files
	}, func(b *bench) { b.expectCalls(good) })
}

func TestBundleIsThatOfTheTrustDomainOfTheCertificate(t *testing.T) {
	for _, tc := range []struct {
		name string
		leaf []pkitest.Option
		drop string
		want string
	}{
		{"a SPIFFE ID", []pkitest.Option{pkitest.URIs("spiffe://other.org/a")}, "", `update a of 2 "other.org" trusts root`},
		{"no SPIFFE ID", []pkitest.Option{pkitest.URIs(), pkitest.DNS("a.shop")}, "", `update a of 2 "" trusts root`},
		{"another URI", []pkitest.Option{pkitest.URIs("https://other.org/a")}, "", `update a of 2 "" trusts root`},
		{"no roots", nil, "ca.crt", `update a of 2`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			withVolume(t, func(b *bench) content { return with(b.secret(b.named("a", tc.leaf...)), tc.drop, nil) }, func(b *bench) { b.expectCalls(tc.want) })
		})
	}
}

func TestWhatCannotBeUsedIsAFaultFromTheStartOn(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files func(b *bench) content
		says  string
	}{
		{"nothing", func(*bench) content { return nil }, "fault not exist"},
		{"the certificate missing", func(b *bench) content { return with(b.secret(b.named("a")), "tls.crt", nil) }, "fault certificate in DIR: no certificate: want tls.crt, tls.key"},
		{"the key missing", func(b *bench) content { return with(b.secret(b.named("a")), "tls.key", nil) }, "fault certificate in DIR: there is tls.crt but no tls.key"},
		{"the key of another layout", func(b *bench) content {
			files := b.secret(b.named("a"))
			return with(with(files, "key.pem", files["tls.key"]), "tls.key", nil)
		}, "fault certificate in DIR: there is tls.crt but no tls.key"},
		{"the key of another", func(b *bench) content { return with(b.secret(b.named("a")), "tls.key", b.named("b").KeyPEM()) }, "fault certificate in DIR: tls.crt, tls.key: the key is not that of the first certificate"},
		{"the certificate empty", func(b *bench) content { return with(b.secret(b.named("a")), "tls.crt", []byte{}) }, "fault tls.crt, tls.key: certificate: no PEM certificate"},
		{"the roots damaged", func(b *bench) content { return with(b.secret(b.named("a")), "ca.crt", []byte("hello")) }, "fault certificate in DIR: ca.crt: no PEM certificate"},
		{"a key among the roots", func(b *bench) content {
			files := b.secret(b.named("a"))
			return with(files, "ca.crt", files["tls.key"])
		}, `fault ca.crt: a PEM block "PRIVATE KEY" among the certificates`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			withVolume(t, tc.files, func(b *bench) {
				b.expectCalls(tc.says)
				b.publish(b.secret(b.named("a")))
				b.advance()
				b.mu.Lock()
				slices.Sort(b.calls) // the end of a fault may come first
				b.mu.Unlock()
				b.expectCalls("mended", good)
			})
		})
	}
}

func TestExchangedCertificateIsReportedOnce(t *testing.T) {
	withVolume(t, func(b *bench) content { return b.secret(b.named("a")) }, func(b *bench) {
		b.expectCalls(good)
		for i := range 5 {
			name := fmt.Sprint("next", i)
			b.publish(b.secret(b.named(name)))
			b.advance()
			b.expectCalls(fmt.Sprintf("update %s of 2 \"example.org\" trusts root", name))
			b.advance()
			b.expectCalls()
		}
	})
}

func TestWhatIsDamagedOrVanishesTakesNothingAway(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(b *bench, files content) content
		says   string
		mended []string
	}{
		{"all vanishes", func(*bench, content) content { return nil }, "fault not exist", []string{"mended"}},
		{"the key vanishes", func(_ *bench, f content) content { return with(f, "tls.key", nil) }, "fault but no tls.key", []string{good, "mended"}},
		{"the certificate vanishes", func(_ *bench, f content) content { return with(f, "tls.crt", nil) }, "fault no certificate", []string{good, "mended"}},
		{"the certificate is exchanged and its key is not", func(b *bench, f content) content { return with(f, "tls.crt", b.named("b").ChainPEM()) }, "fault the key is not that", []string{good, "mended"}},
		{"the certificate is cut off", func(_ *bench, f content) content { return with(f, "tls.crt", f["tls.crt"][:len(f["tls.crt"])-9]) }, "fault cut off", []string{good, "mended"}},
		{"the roots are emptied", func(_ *bench, f content) content { return with(f, "ca.crt", []byte{}) }, "fault ca.crt: no PEM certificate", []string{good, "mended"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var pair pki.Pair
			withVolume(t, func(b *bench) content {
				pair = b.named("a")
				return b.secret(pair)
			}, func(b *bench) {
				b.expectCalls(good)
				b.publish(tc.damage(b, b.secret(pair)))
				b.advance()
				b.expectCalls(tc.says)
				b.advance()
				b.expectCalls()
				b.publish(b.secret(pair))
				b.advance()
				b.expectCalls(tc.mended...)
			})
		})
	}
}

func TestRootsThatVanishAreNotInTheNextUpdate(t *testing.T) {
	withVolume(t, func(b *bench) content { return b.secret(b.named("a")) }, func(b *bench) {
		b.expectCalls(good)
		b.publish(with(b.secret(b.named("b")), "ca.crt", nil))
		b.advance()
		b.expectCalls("update b of 2")
	})
}

func TestCertificateAndKeyWrittenOneAfterTheOtherAreNotMixed(t *testing.T) {
	withVolume(t, func(b *bench) content { return b.secret(b.named("a")) }, func(b *bench) {
		b.expectCalls(good)
		// No link is exchanged: the files themselves are written to.
		next := b.named("b")
		for name, text := range map[string][]byte{"tls.crt": next.ChainPEM(), "tls.key": next.KeyPEM()} {
			if err := os.WriteFile(filepath.Join(b.volume.Dir, name), text, 0o600); err != nil {
				b.Fatal(err)
			}
			time.Sleep(files.Period / 4)
		}
		b.advance()
		b.expectCalls(`update b of 2 "example.org" trusts root`)
	})
}

func TestDirectoryOfACertificateIsNamedFromTheTop(t *testing.T) {
	if s, err := mounted.New("certs"); err == nil || s != nil {
		t.Errorf("%v, %v", s, err)
	}
}
