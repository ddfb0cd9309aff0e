package local_test

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// request asks for the certificate of pkitest.ID, for an hour.
func request(t testing.TB) pki.Request {
	t.Helper()
	return pki.Request{Key: pkitest.Key(t), Names: pki.Names{ID: pkitest.ID}, Lifetime: time.Hour}
}

// checkCertificate fails unless an answer satisfies the request and leads to the roots.
func checkCertificate(t testing.TB, r pki.Request, a pki.Answer, roots []*x509.Certificate, now time.Time) pki.Verified {
	t.Helper()
	v, err := pki.Expectation{Key: r.Key.Public(), Names: &r.Names, Roots: roots}.Verify(a.Chain, now)
	if err != nil {
		t.Fatalf("what was signed does not hold: %v", err)
	}
	return v
}

func newAuthority(t testing.TB, pair pki.Pair, roots []*x509.Certificate) *local.Authority {
	t.Helper()
	a, err := local.New(pair, roots)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthoritySignsWhatLeadsToItsRootAndSendsNoRoot(t *testing.T) {
	root := pkitest.Root(t, "root", now)
	mid := root.Intermediate(t, "mid")
	low := mid.Intermediate(t, "low")
	rooted := func(ca *pkitest.CA) pki.Pair {
		p := ca.Pair()
		p.Chain = append(p.Chain, root.Cert)
		return p
	}
	for _, tc := range []struct {
		name  string
		pair  pki.Pair
		above []*x509.Certificate
		roots []*x509.Certificate
	}{
		{"a root", root.Pair(), nil, root.Roots()},
		{"a root twice", rooted(root), nil, root.Roots()},
		{"an intermediate", mid.Pair(), mid.Chain(), root.Roots()},
		{"an intermediate with its root", rooted(mid), mid.Chain(), root.Roots()},
		{"two intermediates", low.Pair(), low.Chain(), root.Roots()},
		{"two intermediates with their root", rooted(low), low.Chain(), root.Roots()},
		{"an intermediate that is trusted itself", mid.Pair(), nil, []*x509.Certificate{mid.Cert}},
		{"below an intermediate that is trusted itself", low.Pair(), low.Chain()[:1], []*x509.Certificate{mid.Cert}},
		{"an intermediate with a former certificate of its root", rooted(mid), mid.Chain(), []*x509.Certificate{root.Under(t, root).Cert}},
		{"two roots", mid.Pair(), mid.Chain(), append(pkitest.Root(t, "other", now).Roots(), root.Cert)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, r := newAuthority(t, tc.pair, tc.roots), request(t)
			answer, err := a.Sign(r, now)
			if err != nil {
				t.Fatal(err)
			}
			checkCertificate(t, r, answer, tc.roots, now)
			leaf := answer.Chain[0]
			if !same(answer.Chain[1:], tc.above) || !same(answer.Roots, tc.roots) || !same(a.Roots(), tc.roots) {
				t.Errorf("%d certificates above it and %d roots", len(answer.Chain)-1, len(answer.Roots))
			}
			if !leaf.NotBefore.Equal(now.Add(-2*time.Minute)) || !leaf.NotAfter.Equal(now.Add(time.Hour)) {
				t.Errorf("valid from %v until %v", leaf.NotBefore, leaf.NotAfter)
			}
			again, err := a.Sign(r, now)
			if err != nil || again.Chain[0].SerialNumber.Cmp(leaf.SerialNumber) == 0 || leaf.SerialNumber.Sign() <= 0 {
				t.Errorf("serial numbers %v and %v, %v", leaf.SerialNumber, again.Chain[0].SerialNumber, err)
			}
		})
	}
}

func same(a, b []*x509.Certificate) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}

func TestKindsOfKeysOfTheWorkloadAreSigned(t *testing.T) {
	root := pkitest.Root(t, "root", now)
	for _, kind := range []pki.KeyType{pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048} {
		t.Run(string(kind), func(t *testing.T) {
			key, err := kind.Generate()
			if err != nil {
				t.Fatal(err)
			}
			names, err := pki.ParseNames(pkitest.ID, []string{"a.shop"}, []string{"10.0.0.1"})
			if err != nil {
				t.Fatal(err)
			}
			r := pki.Request{Key: key, Names: names, Lifetime: time.Hour}
			answer, err := newAuthority(t, root.Pair(), root.Roots()).Sign(r, now)
			if err != nil {
				t.Fatal(err)
			}
			checkCertificate(t, r, answer, root.Roots(), now)
		})
	}
}

func TestLeafOutlivesNoCertificateAboveIt(t *testing.T) {
	early, late := now.Add(20*time.Minute), now.Add(40*time.Minute)
	for _, tc := range []struct {
		name                string
		root, mid, low, end time.Time
	}{
		{"the intermediate ends before the root", late, early, late.Add(time.Hour), early},
		{"the root ends before the intermediate", early, late, late, early},
		{"the authority's own certificate ends first", late, late, early, early},
		{"all end after the leaf", now.Add(2 * time.Hour), now.Add(2 * time.Hour), now.Add(2 * time.Hour), now.Add(time.Hour)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := pkitest.Root(t, "root", now, pkitest.Until(tc.root))
			low := root.Intermediate(t, "mid", pkitest.Until(tc.mid)).Intermediate(t, "low", pkitest.Until(tc.low))
			r := request(t)
			answer, err := newAuthority(t, low.Pair(), root.Roots()).Sign(r, now)
			if err != nil {
				t.Fatal(err)
			}
			v := checkCertificate(t, r, answer, root.Roots(), now)
			if end := answer.Chain[0].NotAfter; !end.Equal(tc.end) || !v.Until.Equal(tc.end) {
				t.Errorf("it ends at %v, and the chain at %v, want %v", end, v.Until, tc.end)
			}
		})
	}
}

func TestOfTwoRootsTheOneThatLastsLongerCountsForTheEnd(t *testing.T) {
	one := pkitest.Root(t, "one", now, pkitest.Until(now.Add(10*time.Minute)))
	two := pkitest.Root(t, "two", now, pkitest.Until(now.Add(30*time.Minute)))
	mid := one.Intermediate(t, "mid")
	pair := mid.Pair()
	pair.Chain = append(pair.Chain, mid.Under(t, two).Cert)
	roots := append(one.Roots(), two.Roots()...)
	// The authority's own certificate leads to the first root only.
	answer, err := newAuthority(t, pair, roots).Sign(request(t), now)
	if err != nil || !answer.Chain[0].NotAfter.Equal(now.Add(10*time.Minute)) {
		t.Errorf("%v, %v", answer, err)
	}
	// The root is the same, made once more for longer.
	longer := two.Under(t, two, pkitest.Until(now.Add(50*time.Minute)))
	below := two.Intermediate(t, "low")
	answer, err = newAuthority(t, below.Pair(), []*x509.Certificate{two.Cert, longer.Cert}).Sign(request(t), now)
	if err != nil || !answer.Chain[0].NotAfter.Equal(now.Add(50*time.Minute)) {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestAuthorityThatMayNotSignIsRefused(t *testing.T) {
	root := pkitest.Root(t, "root", now)
	with := func(change func(*x509.Certificate)) pki.Pair { return root.Intermediate(t, "mid", change).Pair() }
	missing := root.Intermediate(t, "mid").Intermediate(t, "low").Pair()
	missing.Chain = missing.Chain[:1]
	shallow := pkitest.Root(t, "shallow", now, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	for _, tc := range []struct {
		name  string
		pair  pki.Pair
		roots []*x509.Certificate
		says  string
	}{
		{"CA:FALSE", with(func(c *x509.Certificate) { c.IsCA = false }), root.Roots(), "CA:TRUE is missing"},
		{"no basic constraints", with(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = false, false }), root.Roots(), "CA:TRUE is missing"},
		{"without Certificate Sign", with(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }), root.Roots(), "lacks Certificate Sign"},
		{"without any usage", with(func(c *x509.Certificate) { c.KeyUsage = 0 }), root.Roots(), "lacks Certificate Sign"},
		{"no roots", root.Pair(), nil, "no root certificate"},
		{"another root", with(func(*x509.Certificate) {}), pkitest.Root(t, "root", now).Roots(), "does not lead to one of the roots"},
		{"too long a path", shallow.Intermediate(t, "mid").Intermediate(t, "low").Pair(), shallow.Roots(), "does not lead to one of the roots"},
		{"an intermediate missing", missing, root.Roots(), "does not lead to one of the roots"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := local.New(tc.pair, tc.roots)
			if err == nil || a != nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, %v, want an error that tells %q", a, err, tc.says)
			}
		})
	}
}

func TestKeyThatIsNotTheCertificatesSignsNothing(t *testing.T) {
	root := pkitest.Root(t, "root", now)
	a := newAuthority(t, pki.Pair{Key: pkitest.Key(t), Chain: root.Pair().Chain}, root.Roots())
	if answer, err := a.Sign(request(t), now); err == nil || answer.Chain != nil {
		t.Errorf("it signs: %v", err)
	}
}

func TestAuthorityOutsideItsTimeSaysSo(t *testing.T) {
	hour := func(h int) time.Time { return now.Add(time.Duration(h) * time.Hour) }
	for _, tc := range []struct {
		name      string
		root, mid []pkitest.Option
	}{
		{"it has ended", nil, []pkitest.Option{pkitest.Valid(hour(-2), hour(-1))}},
		{"its root has ended", []pkitest.Option{pkitest.Valid(hour(-2), hour(-1))}, nil},
		{"its root ended before it began", []pkitest.Option{pkitest.Valid(hour(-9), hour(-8))}, nil},
		{"it begins later", nil, []pkitest.Option{pkitest.Valid(hour(1), hour(2))}},
		{"its root begins later", []pkitest.Option{pkitest.Valid(hour(1), hour(2))}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := pkitest.Root(t, "root", now, tc.root...)
			a := newAuthority(t, root.Intermediate(t, "mid", tc.mid...).Pair(), root.Roots())
			answer, err := a.Sign(request(t), now)
			if pki.ReasonOf(err, "none") != pki.Expired || answer.Chain != nil || !strings.Contains(err.Error(), "cannot sign now") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAuthorityWithoutANameConstraintIsWarnedOf(t *testing.T) {
	root, bound := pkitest.Root(t, "root", now), pkitest.Root(t, "bound", now, pkitest.Constrained(pkitest.Domain))
	dns := func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"shop"} }
	for _, tc := range []struct {
		name string
		ca   *pkitest.CA
		warn bool
	}{
		{"a root without", root, true},
		{"an intermediate without", root.Intermediate(t, "mid"), true},
		{"with one for DNS names only", root.Intermediate(t, "mid", dns), true},
		{"a root with one", bound, false},
		{"an intermediate with one", root.Intermediate(t, "mid", pkitest.Constrained(pkitest.Domain)), false},
		{"below an intermediate with one", root.Intermediate(t, "mid", pkitest.Constrained(pkitest.Domain)).Intermediate(t, "low"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			warnings := newAuthority(t, tc.ca.Pair(), tc.ca.Roots()).Warnings()
			if tc.warn != (len(warnings) == 1) || tc.warn && !strings.Contains(warnings[0], "no name constraint") {
				t.Errorf("%q", warnings)
			}
		})
	}
}

func TestAuthorityForDevelopmentCannotSignForAnotherTrustDomain(t *testing.T) {
	for _, tc := range []struct {
		name, domain, id string
		holds            bool
	}{
		{"its own", pkitest.Domain, pkitest.ID, true},
		{"another", pkitest.Domain, "spiffe://other.org/a", false},
		{"one that ends in the same", pkitest.Domain, "spiffe://anexample.org/a", false},
		{"any, if it has none", "", "spiffe://other.org/a", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := local.NewDev(tc.domain, now)
			if err != nil {
				t.Fatal(err)
			}
			r := request(t)
			r.Names.ID = tc.id
			answer, err := a.Sign(r, now)
			if err != nil {
				t.Fatal(err)
			}
			_, err = pki.Expectation{Roots: a.Roots()}.Verify(answer.Chain, now)
			if tc.holds != (err == nil) || !tc.holds && !strings.Contains(err.Error(), "not permitted by any constraint") {
				t.Errorf("got %v", err)
			}
			// It may sign workloads, but no authorities.
			if root := a.Roots()[0]; !root.MaxPathLenZero || !root.NotAfter.Equal(now.Add(local.DevLifetime)) {
				t.Errorf("path length %d, until %v", root.MaxPathLen, root.NotAfter)
			}
		})
	}
}
