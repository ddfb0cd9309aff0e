package local_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// bench runs an authority in virtual time and records its calls.
type bench struct {
	*testing.T
	authority interface {
		Run(ctx context.Context, roots func([]*x509.Certificate), fault func(error)) error
		Issue(ctx context.Context, r pki.Request) (pki.Answer, error)
	}
	stop  context.CancelFunc
	ended chan error

	mu    sync.Mutex
	calls []string
	log   bytes.Buffer
}

func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

func (b *bench) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// logged checks how often a text is in the log.
func (b *bench) logged(text string, want int) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := strings.Count(b.log.String(), text); got != want {
		b.Errorf("%q is %d times in the log, want %d: %s", text, got, want, b.log.String())
	}
}

// run starts the authority and waits for its first read of the files.
func (b *bench) run() {
	b.Helper()
	b.start()
	synctest.Wait()
}

func (b *bench) start() {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	b.stop, b.ended = cancel, make(chan error, 1)
	note := func(call string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.calls = append(b.calls, call)
	}
	go func() {
		b.ended <- b.authority.Run(ctx, func(roots []*x509.Certificate) {
			var names []string
			for _, c := range roots {
				names = append(names, c.Subject.CommonName)
			}
			note("roots " + strings.Join(names, " "))
		}, func(err error) {
			if err == nil {
				note("mended")
				return
			}
			note("fault " + err.Error())
		})
	}()
}

// end ends the run and returns what Run returned.
func (b *bench) end() error {
	b.Helper()
	b.stop()
	return <-b.ended
}

// advance waits until a change of the files was read.
func (b *bench) advance() {
	time.Sleep(2 * files.Period)
	synctest.Wait()
}

// expectCalls checks the calls since the last check: the beginning of each, and the text after a "…".
func (b *bench) expectCalls(want ...string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.EqualFunc(b.calls, want, matches) {
		b.Fatalf("got  %q\nwant %q", b.calls, want)
	}
	b.calls = nil
}

func matches(text, want string) bool {
	for i, part := range strings.Split(want, "…") {
		if i == 0 && !strings.HasPrefix(text, part) || !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// issue issues a certificate that must hold and lead to a root; nil for those that
// the authority names.
func (b *bench) issue(roots []*x509.Certificate) pki.Answer {
	b.Helper()
	r := request(b)
	answer, err := b.authority.Issue(b.Context(), r)
	if err != nil {
		b.Fatal(err)
	}
	if roots == nil {
		roots = answer.Roots
	}
	checkCertificate(b, r, answer, roots, time.Now())
	return answer
}

// onDir runs a test with an authority in a volume, which is not run yet.
func onDir(t *testing.T, test func(b *bench, v *pkitest.Volume)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b, v := &bench{T: t}, pkitest.NewVolume(t)
		dir, err := local.NewDir(v.Dir, time.Now, b.logger())
		if err != nil {
			t.Fatal(err)
		}
		b.authority = dir
		test(b, v)
		if b.stop != nil {
			if err := b.end(); err != nil {
				t.Errorf("Run returned %v", err)
			}
		}
	})
}

type content = map[string][]byte

// istio returns the files of an authority as Istio has them, secret as a secret of
// type kubernetes.io/tls.
func istio(ca *pkitest.CA) content {
	return content{
		"ca-cert.pem": pki.EncodeCerts(ca.Pair().Chain[:1]), "ca-key.pem": ca.Pair().KeyPEM(),
		"cert-chain.pem": pki.EncodeCerts(append(ca.Chain(), ca.Roots()...)), "root-cert.pem": pki.EncodeCerts(ca.Roots()),
	}
}

func secret(ca *pkitest.CA) content {
	return content{"tls.crt": ca.Pair().ChainPEM(), "tls.key": ca.Pair().KeyPEM(), "ca.crt": pki.EncodeCerts(ca.Roots())}
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

func TestAuthorityIsReadFromEachLayout(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files func(mid, root *pkitest.CA) content
		above int
	}{
		{"Istio's", func(mid, _ *pkitest.CA) content { return istio(mid) }, 1},
		{"Istio's with a root", func(_, root *pkitest.CA) content { return istio(root) }, 0},
		{"Istio's without the root in the chain", func(mid, _ *pkitest.CA) content {
			return with(istio(mid), "cert-chain.pem", pki.EncodeCerts(mid.Chain()))
		}, 1},
		{"Istio's with a chain that begins above the authority", func(mid, root *pkitest.CA) content {
			return with(istio(mid), "cert-chain.pem", pki.EncodeCerts(root.Roots()))
		}, 1},
		{"Istio's without a chain", func(mid, _ *pkitest.CA) content { return with(istio(mid), "cert-chain.pem", nil) }, 1},
		{"Istio's, the root being in the chain only", func(mid, _ *pkitest.CA) content { return with(istio(mid), "root-cert.pem", nil) }, 1},
		{"Istio's with a root that is named nowhere else", func(_, root *pkitest.CA) content {
			return with(with(istio(root), "root-cert.pem", nil), "cert-chain.pem", nil)
		}, 0},
		{"that of a secret", func(mid, _ *pkitest.CA) content { return secret(mid) }, 1},
		{"that of a secret with a root", func(_, root *pkitest.CA) content { return secret(root) }, 0},
		{"that of a secret with a root, without ca.crt", func(_, root *pkitest.CA) content { return with(secret(root), "ca.crt", nil) }, 0},
		{"that of a secret with two intermediates", func(mid, _ *pkitest.CA) content { return secret(mid.Intermediate(t, "low")) }, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onDir(t, func(b *bench, v *pkitest.Volume) {
				root := pkitest.Root(b, "root", time.Now())
				v.Publish(b, tc.files(root.Intermediate(b, "mid"), root))
				b.run()
				b.advance()
				b.expectCalls("roots root")
				if answer := b.issue(root.Roots()); len(answer.Chain) != 1+tc.above || !same(answer.Roots, root.Roots()) {
					b.Errorf("%d certificates and %d roots", len(answer.Chain), len(answer.Roots))
				}
			})
		})
	}
}

func TestDirectoryThatHoldsNoAuthorityIsAFault(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of virtual time
	root := pkitest.Root(t, "root", start)
	mid, other := root.Intermediate(t, "mid"), pkitest.Root(t, "other", start)
	text := func(certs ...*x509.Certificate) []byte { return pki.EncodeCerts(certs) }
	both := istio(mid)
	for name, content := range secret(mid) {
		both[name] = content
	}
	leaf := mid.Leaf(t)
	for _, tc := range []struct {
		name  string
		files content
		says  string
	}{
		{"both layouts", both, "there are both ca-cert.pem and tls.crt: want only one authority"},
		{"roots alone", content{"root-cert.pem": text(root.Cert)}, "neither ca-cert.pem nor tls.crt is there"},
		{"no key", with(istio(mid), "ca-key.pem", nil), "ca-key.pem is missing"},
		{"no key in a secret", with(secret(mid), "tls.key", nil), "tls.key is missing"},
		{"no certificate", with(istio(mid), "ca-cert.pem", nil), "neither ca-cert.pem nor tls.crt is there"},
		{"no root", with(secret(mid), "ca.crt", nil), "ca.crt is missing, and the certificate is not a root itself"},
		{"no root and no chain", with(with(istio(mid), "root-cert.pem", nil), "cert-chain.pem", nil), "root-cert.pem is missing"},
		{"the key of another", with(istio(mid), "ca-key.pem", other.Pair().KeyPEM()), "ca-cert.pem, ca-key.pem: the key is not that of the first certificate"},
		{"the key cut off", with(istio(mid), "ca-key.pem", mid.Pair().KeyPEM()[:60]), "ca-cert.pem, ca-key.pem: key: a PEM block that is damaged"},
		{"the root empty", with(secret(mid), "ca.crt", []byte{}), "ca.crt: no PEM certificate"},
		{"the chain damaged", with(istio(mid), "cert-chain.pem", []byte("hello")), "cert-chain.pem: no PEM certificate"},
		{"another root", with(istio(mid), "root-cert.pem", text(other.Cert)), "does not lead to one of the roots"},
		{"a leaf", content{"tls.crt": leaf.ChainPEM(), "tls.key": leaf.KeyPEM(), "ca.crt": text(root.Cert)}, "CA:TRUE is missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onDir(t, func(b *bench, v *pkitest.Volume) {
				v.Publish(b, tc.files)
				b.run()
				b.advance()
				b.expectCalls("fault authority in " + v.Dir + ": …" + tc.says)
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				if answer, err := b.authority.Issue(ctx, request(b)); err == nil || answer.Chain != nil || !strings.Contains(err.Error(), tc.says) {
					b.Errorf("it issues %v, %v", answer, err)
				}
			})
		})
	}
}

func TestIssueWaitsForTheFilesUntilItsContextEnds(t *testing.T) {
	onDir(t, func(b *bench, v *pkitest.Volume) {
		root := pkitest.Root(b, "root", time.Now())
		waits := func(says string) {
			b.Helper()
			begin := time.Now()
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			_, err := b.authority.Issue(ctx, request(b))
			if err == nil || !strings.Contains(err.Error(), says) || time.Since(begin) != time.Minute {
				b.Errorf("after %v: %v, want %q", time.Since(begin), err, says)
			}
		}
		waits("not read yet: context deadline exceeded")
		b.run()
		b.expectCalls("fault read …ca-cert.pem…tls.crt…not exist")
		waits(filepath.Join(v.Dir, "ca-cert.pem"))
		v.Publish(b, with(secret(root), "tls.key", nil))
		b.advance()
		b.expectCalls("mended", "fault …tls.key is missing") // the files exist again, and are then parsed
		waits("tls.key is missing")

		issued := make(chan pki.Answer)
		r := request(b)
		go func() {
			answer, err := b.authority.Issue(b.Context(), r)
			if err != nil {
				b.Error(err)
			}
			issued <- answer
		}()
		synctest.Wait()
		v.Publish(b, secret(root))
		checkCertificate(b, r, <-issued, root.Roots(), time.Now())
		b.advance()
		b.expectCalls("roots root", "mended")
	})
}

func TestAuthorityThatIsExchangedSignsFromThenOn(t *testing.T) {
	onDir(t, func(b *bench, v *pkitest.Volume) {
		one, two := pkitest.Root(b, "one", time.Now()), pkitest.Root(b, "two", time.Now())
		v.Publish(b, istio(one.Intermediate(b, "mid")))
		b.run()
		b.advance()
		b.expectCalls("roots one")
		b.issue(one.Roots())

		files := istio(two.Intermediate(b, "mid"))
		files["root-cert.pem"] = pki.EncodeCerts([]*x509.Certificate{one.Cert, two.Cert})
		v.Publish(b, files)
		b.advance()
		b.expectCalls("roots one two")
		b.issue(two.Roots())

		v.Publish(b, secret(two)) // another layout
		b.advance()
		b.expectCalls("roots two")
		if answer := b.issue(two.Roots()); len(answer.Chain) != 1 {
			b.Errorf("%d certificates", len(answer.Chain))
		}
		b.advance()
		b.expectCalls()
	})
}

func TestBrokenExchangeKeepsTheAuthorityAndIsReportedUntilItIsMended(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(files content) content
		says   string
		mended []string
	}{
		{"the key is that of before", nil, "not that of the first certificate", []string{"roots two", "mended"}},
		{"the key is cut off", func(f content) content { return with(f, "ca-key.pem", f["ca-key.pem"][:80]) }, "cut off", []string{"roots two", "mended"}},
		{"the key is missing", func(f content) content { return with(f, "ca-key.pem", nil) }, "ca-key.pem is missing", []string{"roots two", "mended"}},
		{"all is gone", func(content) content { return nil }, "not exist", []string{"mended", "roots two"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onDir(t, func(b *bench, v *pkitest.Volume) {
				one, two := pkitest.Root(b, "one", time.Now()), pkitest.Root(b, "two", time.Now())
				v.Publish(b, istio(one))
				b.run()
				b.advance()
				b.expectCalls("roots one")
				files := istio(two)
				if tc.damage != nil {
					files = tc.damage(files)
				} else {
					files["ca-key.pem"] = one.Pair().KeyPEM()
				}
				v.Publish(b, files)
				b.advance()
				b.expectCalls("fault …" + tc.says)
				b.issue(one.Roots())
				b.advance()
				b.expectCalls()
				v.Publish(b, istio(two))
				b.advance()
				b.expectCalls(tc.mended...)
				b.issue(two.Roots())
			})
		})
	}
}

func TestIssueReportsAnAuthorityThatHasEndedWithItsDirectory(t *testing.T) {
	onDir(t, func(b *bench, v *pkitest.Volume) {
		root := pkitest.Root(b, "root", time.Now(), pkitest.Until(time.Now().Add(time.Hour)))
		v.Publish(b, secret(root))
		b.run()
		b.advance()
		b.expectCalls("roots root")
		time.Sleep(time.Hour)
		_, err := b.authority.Issue(b.Context(), request(b))
		if pki.ReasonOf(err, "none") != pki.Expired || !strings.Contains(err.Error(), "authority in "+v.Dir+": the authority cannot sign now") {
			b.Errorf("got %v", err)
		}
	})
}

func TestMissingNameConstraintIsLoggedOnceForEachAuthority(t *testing.T) {
	const warning = "has no name constraint"
	onDir(t, func(b *bench, v *pkitest.Volume) {
		root := pkitest.Root(b, "root", time.Now())
		v.Publish(b, secret(root.Intermediate(b, "mid", pkitest.Constrained(pkitest.Domain))))
		b.run()
		b.advance()
		b.logged(warning, 0)
		v.Publish(b, secret(root))
		b.advance()
		b.advance()
		b.logged(warning, 1)
		b.logged("dir="+v.Dir, 1)
	})
}

func TestDirectoryOfAnAuthorityIsNamedFromTheTop(t *testing.T) {
	if d, err := local.NewDir("ca", time.Now, slog.New(slog.DiscardHandler)); err == nil || d != nil {
		t.Errorf("%v, %v", d, err)
	}
	if d, err := local.OpenDev("ca", "", time.Now, slog.New(slog.DiscardHandler)); err == nil || d != nil {
		t.Errorf("%v, %v", d, err)
	}
}
