package local_test

import (
	"context"
	"crypto/x509"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// mine is what the authority of these tests has to sign: a workload, and the names of a server.
var mine = []pki.Names{{ID: pkitest.ID}, {DNS: []string{"mesh.example.com"}, IPs: []string{"10.0.0.1"}}}

// requiring runs a test with an authority in a volume that has to sign names.
func requiring(t *testing.T, names func() []pki.Names, test func(b *bench, v *pkitest.Volume)) {
	t.Helper()
	onDir(t, func(b *bench, v *pkitest.Volume) {
		b.authority.(*local.Dir).Require(names)
		test(b, v)
	})
}

func always() []pki.Names { return mine }

// sign asks for a certificate with names, and returns why it does not hold; nil if it does.
func (b *bench) sign(names pki.Names, roots []*x509.Certificate) error {
	b.Helper()
	r := request(b)
	r.Names = names
	answer, err := b.authority.Issue(b.Context(), r)
	if err == nil {
		_, err = pki.Expectation{Key: r.Key.Public(), Names: &names, Roots: roots}.Verify(answer.Chain, time.Now())
	}
	return err
}

// Whoever writes the files of an authority may make a mistake with its constraints, its times or its uses. The authority of before
// stays in use then, until the mistake is mended.
func TestAnAuthorityIsTriedBeforeItTakesThePlaceOfAnother(t *testing.T) {
	hour := func(h int) time.Time {
		return time.Date(2000, 1, 1, h, 0, 0, 0, time.UTC) // virtual time begins at 0
	}
	ips := func(text string) []*net.IPNet {
		_, block, err := net.ParseCIDR(text)
		if err != nil {
			panic(err)
		}
		return []*net.IPNet{block}
	}
	critical := func(change func(*x509.Certificate)) pkitest.Option {
		return func(c *x509.Certificate) {
			change(c)
			c.PermittedDNSDomainsCritical = true
		}
	}
	otherDomain := pkitest.Constrained("other.example")
	const workload, server = "it signs no certificate that holds for " + pkitest.ID + ": ", "it signs no certificate that holds for mesh.example.com, 10.0.0.1: "
	for _, tc := range []struct {
		name      string
		root, mid []pkitest.Option
		says      string
	}{
		{"for another trust domain", nil, []pkitest.Option{otherDomain}, workload},
		{"of a root for another trust domain", []pkitest.Option{otherDomain}, nil, workload},
		{"for a domain that ends in the same", nil, []pkitest.Option{pkitest.Constrained("an" + pkitest.Domain)}, workload},
		{"for domains below it", nil, []pkitest.Option{pkitest.Constrained("." + pkitest.Domain)}, workload},
		{"not for the trust domain", nil, []pkitest.Option{critical(func(c *x509.Certificate) { c.ExcludedURIDomains = []string{pkitest.Domain} })}, workload},
		{"for other servers", nil, []pkitest.Option{critical(func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"other.example"} })}, server},
		{"not for the server", nil, []pkitest.Option{critical(func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"example.com"} })}, server},
		{"for other addresses", nil, []pkitest.Option{critical(func(c *x509.Certificate) { c.PermittedIPRanges = ips("192.0.2.0/24") })}, server},
		{"not for the address", []pkitest.Option{critical(func(c *x509.Certificate) { c.ExcludedIPRanges = ips("10.0.0.0/8") })}, nil, server},
		{"for mail", nil, []pkitest.Option{pkitest.Usages(x509.ExtKeyUsageEmailProtection)}, workload},
		{"for servers only", nil, []pkitest.Option{pkitest.Usages(x509.ExtKeyUsageServerAuth)}, workload},
		{"that has expired", nil, []pkitest.Option{pkitest.Valid(hour(-2), hour(-1))}, `it cannot sign now: the certificate of "CN=mid" is valid from 1999-12-31T22:00:00Z until 1999-12-31T23:00:00Z`},
		{"of a root that has expired", []pkitest.Option{pkitest.Valid(hour(-2), hour(-1))}, nil, "it cannot sign now: "},
		{"that is not valid yet", nil, []pkitest.Option{pkitest.Valid(hour(5), hour(9))}, "it cannot sign now: "},
		{"that may not sign", nil, []pkitest.Option{func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }}, "lacks Certificate Sign"},
		{"of a root below which no other may be", []pkitest.Option{func(c *x509.Certificate) { c.MaxPathLenZero = true }}, nil, workload + "the certificate is not valid: x509: too many intermediates for path length constraint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			requiring(t, always, func(b *bench, v *pkitest.Volume) {
				one := pkitest.Root(b, "one", time.Now())
				v.Publish(b, istio(one))
				b.run()
				b.advance()
				b.expectCalls("roots one")
				two := pkitest.Root(b, "two", time.Now(), tc.root...)
				v.Publish(b, istio(two.Intermediate(b, "mid", tc.mid...)))
				b.advance()
				b.expectCalls("fault authority in " + v.Dir + ": …" + tc.says)
				b.advance() // it is told once
				b.expectCalls()
				for _, names := range mine {
					if err := b.sign(names, one.Roots()); err != nil {
						b.Errorf("%s: %v", names, err)
					}
				}
				three := pkitest.Root(b, "three", time.Now())
				v.Publish(b, istio(three))
				b.advance()
				b.expectCalls("roots three", "mended")
				if err := b.sign(mine[0], three.Roots()); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

func TestAnAuthorityWithTheRightConstraintsTakesThePlaceOfAnother(t *testing.T) {
	_, block, err := net.ParseCIDR("10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	requiring(t, always, func(b *bench, v *pkitest.Volume) {
		v.Publish(b, istio(pkitest.Root(b, "one", time.Now())))
		b.run()
		b.advance()
		two := pkitest.Root(b, "two", time.Now(), pkitest.Constrained(pkitest.Domain), func(c *x509.Certificate) {
			c.PermittedDNSDomains, c.PermittedIPRanges = []string{"example.com"}, []*net.IPNet{block}
		})
		v.Publish(b, istio(two.Intermediate(b, "mid")))
		b.advance()
		b.expectCalls("roots one", "roots two")
		for _, names := range mine {
			if err := b.sign(names, two.Roots()); err != nil {
				b.Errorf("%s: %v", names, err)
			}
		}
	})
}

// At the first start there is no authority of before: the one that is there is used for what it can do, and the problem is told.
func TestAnAuthorityThatSignsTooLittleIsTheFirst(t *testing.T) {
	requiring(t, always, func(b *bench, v *pkitest.Volume) {
		one := pkitest.Root(b, "one", time.Now(), pkitest.Constrained("other.example"))
		v.Publish(b, istio(one))
		b.run()
		b.advance()
		b.expectCalls("roots one", "fault authority in "+v.Dir+": it signs no certificate that holds for "+pkitest.ID+": …not permitted by any constraint")
		b.advance()
		b.expectCalls()
		if err := b.sign(mine[1], one.Roots()); err != nil {
			b.Errorf("the names of the server: %v", err)
		}
		// Another one that signs no more takes its place, because it signs no less.
		two := pkitest.Root(b, "two", time.Now(), pkitest.Constrained("third.example"))
		v.Publish(b, istio(two))
		b.advance()
		b.expectCalls("roots two") // the problem is the same
		// One that signs other things, and not what this one does, is refused.
		v.Publish(b, istio(pkitest.Root(b, "three", time.Now(), func(c *x509.Certificate) {
			c.PermittedURIDomains, c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{pkitest.Domain}, []string{"other.example"}, true
		})))
		b.advance()
		b.expectCalls("fault authority in " + v.Dir + ": it signs no certificate that holds for mesh.example.com, 10.0.0.1: …the former authority stays in use, because it can")
		v.Publish(b, istio(pkitest.Root(b, "four", time.Now())))
		b.advance()
		b.expectCalls("roots four", "mended")
	})
}

// What has to be signed changes with the configuration of a mesh, which is read after the authority.
func TestAnAuthorityIsTriedAgainWhenOtherNamesAreRequired(t *testing.T) {
	var names atomic.Pointer[[]pki.Names]
	none, ours, others := []pki.Names{}, mine[:1], []pki.Names{{ID: "spiffe://other.example/ns/x/sa/x"}}
	names.Store(&none)
	requiring(t, func() []pki.Names { return *names.Load() }, func(b *bench, v *pkitest.Volume) {
		one := pkitest.Root(b, "one", time.Now(), pkitest.Constrained(pkitest.Domain))
		v.Publish(b, istio(one))
		b.run()
		b.advance()
		b.expectCalls("roots one")
		names.Store(&ours)
		b.advance()
		b.expectCalls()
		// The authority for the next trust domain comes before the configuration that names it.
		two := pkitest.Root(b, "two", time.Now(), pkitest.Constrained("other.example"))
		v.Publish(b, istio(two))
		b.advance()
		b.expectCalls("fault …" + pkitest.ID)
		names.Store(&others)
		b.advance()
		b.expectCalls("roots two", "mended")
		if err := b.sign(others[0], two.Roots()); err != nil {
			b.Error(err)
		}
		// The configuration goes back to the first trust domain, and no authority is there for it.
		names.Store(&ours)
		b.advance()
		b.expectCalls("fault …" + pkitest.ID)
		b.advance()
		b.expectCalls()
		names.Store(&others)
		b.advance()
		b.expectCalls("mended")
	})
}

func TestARefusedAuthorityIsUsedWhenItsTimeComesOrThatOfTheFormerEnds(t *testing.T) {
	for _, tc := range []struct {
		name       string
		next       pkitest.Option
		after, end time.Duration
		calls      []string
	}{
		{"its time comes", func(c *x509.Certificate) { c.NotBefore = c.NotBefore.Add(70 * time.Minute) }, 11 * time.Minute, 5 * time.Hour, []string{"roots two", "mended"}},
		{"the former one ends", pkitest.Constrained("other.example"), 11 * time.Minute, 10 * time.Minute, []string{"roots two", "fault …it signs no certificate that holds for " + pkitest.ID}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			requiring(t, func() []pki.Names { return mine[:1] }, func(b *bench, v *pkitest.Volume) {
				v.Publish(b, istio(pkitest.Root(b, "one", time.Now(), pkitest.Until(time.Now().Add(tc.end)))))
				b.run()
				b.advance()
				v.Publish(b, istio(pkitest.Root(b, "two", time.Now(), tc.next)))
				b.advance()
				b.expectCalls("roots one", "fault …")
				time.Sleep(tc.after)
				b.advance()
				b.expectCalls(tc.calls...)
			})
		})
	}
}

func TestAnAuthorityThatEndsIsToldOnce(t *testing.T) {
	requiring(t, always, func(b *bench, v *pkitest.Volume) {
		v.Publish(b, istio(pkitest.Root(b, "one", time.Now(), pkitest.Until(time.Now().Add(10*time.Minute)))))
		b.run()
		b.advance()
		b.expectCalls("roots one")
		time.Sleep(10 * time.Minute)
		b.advance()
		b.expectCalls("fault authority in " + v.Dir + `: it cannot sign now: the certificate of "CN=one" is valid from `)
		time.Sleep(time.Minute)
		b.expectCalls()
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		if _, err := b.authority.Issue(ctx, request(b)); err == nil || !strings.Contains(err.Error(), "the authority cannot sign now") {
			b.Errorf("it signs: %v", err)
		}
	})
}
