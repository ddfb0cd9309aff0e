package pki_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// now is the time of all tests.
var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// fixture is a chain of three certificates and an expectation.
type fixture struct {
	root, mid *pkitest.CA
	pair      pki.Pair
	want      pki.Expectation
}

// newFixture returns a valid chain whose parts are changed by options.
func newFixture(t *testing.T, root, mid, leaf []pkitest.Option) *fixture {
	t.Helper()
	w := &fixture{root: pkitest.Root(t, "root", now, root...)}
	w.mid = w.root.Intermediate(t, "mid", mid...)
	w.pair = w.mid.Leaf(t, leaf...)
	w.want = pki.Expectation{Key: w.pair.Key.Public(), Names: &pki.Names{ID: pkitest.ID}, Roots: w.root.Roots()}
	return w
}

// verify checks that the reason is what is wanted, "" for none.
func (w *fixture) verify(t *testing.T, reason pki.Reason, says string) pki.Verified {
	t.Helper()
	v, err := w.want.Verify(w.pair.Chain, now)
	if reason == "" {
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		return v
	}
	fault, ok := errors.AsType[*pki.Fault](err)
	if !ok || fault.Reason != reason || pki.ReasonOf(err, "none") != reason {
		t.Fatalf("got %v (%s), want a fault %s", err, pki.ReasonOf(err, "none"), reason)
	}
	if v != (pki.Verified{}) {
		t.Errorf("beside the error there is %v", v)
	}
	if !strings.Contains(err.Error(), says) {
		t.Errorf("error %q does not tell %q", err, says)
	}
	return v
}

type options = []pkitest.Option

func with(change func(*x509.Certificate)) options { return options{change} }

func TestChainIsRefusedForWhatAloneIsWrongWithIt(t *testing.T) {
	until := func(d time.Duration) options { return options{pkitest.Until(now.Add(d))} }
	otherName := func(c *x509.Certificate) {
		// An otherName: an address of Microsoft's directory, beside the SPIFFE ID.
		value, err := asn1.Marshal([]asn1.RawValue{
			{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(pkitest.ID)},
			{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: []byte{6, 1, 42, 0xa0, 3, 12, 1, 'a'}},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.URIs, c.ExtraExtensions = nil, []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Critical: true, Value: value}}
	}
	for _, tc := range []struct {
		name            string
		root, mid, leaf options
		change          func(t *testing.T, w *fixture)
		reason          pki.Reason // "" for none
		says            string
	}{
		{name: "nothing is wrong"},
		{name: "the names are in another order", leaf: options{pkitest.DNS("a.shop", "b.shop")},
			change: func(_ *testing.T, w *fixture) { w.want.Names.DNS = []string{"b.shop", "a.shop"} }},
		{name: "no key is expected", change: func(_ *testing.T, w *fixture) { w.want.Key = nil }},
		{name: "no names are expected", leaf: options{pkitest.URIs("urn:a", "urn:b")}, change: func(_ *testing.T, w *fixture) { w.want.Names = nil }},
		{name: "no key usage is named", leaf: with(func(c *x509.Certificate) { c.KeyUsage = 0 })},
		{name: "no extended key usage is named", leaf: options{pkitest.Usages()}},
		{name: "any extended key usage", leaf: options{pkitest.Usages(x509.ExtKeyUsageAny)}},
		{name: "constrained to its trust domain", mid: options{pkitest.Constrained(pkitest.Domain)}},

		{name: "another key", reason: pki.WrongKey, says: "a different key",
			change: func(t *testing.T, w *fixture) { w.want.Key = pkitest.Key(t).Public() }},
		{name: "a key of another kind", reason: pki.WrongKey, says: "a different key", change: func(t *testing.T, w *fixture) {
			key, err := pki.RSA2048.Generate()
			if err != nil {
				t.Fatal(err)
			}
			w.want.Key = key.Public()
		}},

		{name: "another URI", leaf: options{pkitest.URIs("spiffe://example.org/ns/shop/sa/till")}, reason: pki.WrongName, says: "sa/till: want exactly " + pkitest.ID},
		{name: "no URI", leaf: options{pkitest.URIs()}, reason: pki.WrongName, says: "for none: want exactly"},
		{name: "two URIs", leaf: options{pkitest.URIs(pkitest.ID, "spiffe://example.org/b")}, reason: pki.WrongName, says: "2 URIs"},
		{name: "the same URI twice", leaf: options{pkitest.URIs(pkitest.ID, pkitest.ID)}, reason: pki.WrongName, says: "2 URIs"},
		{name: "the URI with an empty fragment, which URLs lose", reason: pki.WrongName, says: "sa/cart#",
			leaf: with(func(c *x509.Certificate) { c.URIs[0].Opaque = "//example.org/ns/shop/sa/cart#" })},
		{name: "the scheme in capitals, which URLs lose", reason: pki.WrongName, says: "SPIFFE://",
			leaf: with(func(c *x509.Certificate) { c.URIs[0].Scheme = "SPIFFE" })},
		{name: "a DNS name too many", leaf: options{pkitest.DNS("a.shop")}, reason: pki.WrongName, says: "a.shop"},
		{name: "a DNS name missing", reason: pki.WrongName, says: "want exactly " + pkitest.ID + ", a.shop",
			change: func(_ *testing.T, w *fixture) { w.want.Names.DNS = []string{"a.shop"} }},
		{name: "an IP address too many", reason: pki.WrongName, says: "10.0.0.1",
			leaf: with(func(c *x509.Certificate) { c.IPAddresses = []net.IP{{10, 0, 0, 1}} })},
		{name: "an e-mail address", reason: pki.WrongName, says: "e-mail",
			leaf: with(func(c *x509.Certificate) { c.EmailAddresses = []string{"a@shop"} })},
		{name: "a name of a kind that x509 passes over", leaf: options{otherName}, reason: pki.WrongName, says: "unusual"},

		{name: "a leaf that ended", leaf: until(-time.Second), reason: pki.Expired, says: "expired at 2026-11-21T09:59:59Z"},
		{name: "a leaf that ends now", leaf: until(0), reason: pki.Expired, says: "expired"},
		{name: "an intermediate that ended", mid: until(-time.Second), reason: pki.Expired, says: "expired"},
		{name: "a root that ended", root: until(-time.Second), reason: pki.Expired, says: "expired"},
		{name: "a leaf that begins after its intermediate ends", mid: until(time.Hour), reason: pki.Expired, says: "expired",
			leaf: options{pkitest.Valid(now.Add(2*time.Hour), now.Add(3*time.Hour))}},

		{name: "another root of the same name", reason: pki.Untrusted, says: "unknown authority",
			change: func(t *testing.T, w *fixture) { w.want.Roots = pkitest.Root(t, "root", now).Roots() }},
		{name: "no roots", reason: pki.Untrusted, says: "unknown authority", change: func(_ *testing.T, w *fixture) { w.want.Roots = nil }},
		{name: "the intermediate missing", reason: pki.Untrusted, says: "unknown authority",
			change: func(_ *testing.T, w *fixture) { w.pair.Chain = w.pair.Chain[:1] }},
		{name: "an intermediate that is no authority", mid: with(func(c *x509.Certificate) { c.IsCA = false }), reason: pki.Untrusted},
		{name: "a SPIFFE ID that a name constraint forbids", mid: options{pkitest.Constrained("other.org")}, reason: pki.Untrusted, says: "not permitted by any constraint"},
		{name: "too long a path", mid: with(func(c *x509.Certificate) { c.MaxPathLenZero = true }), reason: pki.Untrusted,
			change: func(t *testing.T, w *fixture) {
				w.pair = w.mid.Intermediate(t, "low").Leaf(t)
				w.want.Key = nil
			}},

		{name: "an authority", leaf: with(func(c *x509.Certificate) { c.IsCA = true }), reason: pki.Unfit, says: "a CA certificate"},
		{name: "one that may sign certificates", leaf: with(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), reason: pki.Unfit, says: "may sign others"},
		{name: "one that may sign revocations", leaf: with(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }), reason: pki.Unfit, says: "may sign others"},
		{name: "one without digital signatures", leaf: with(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }), reason: pki.Unfit, says: "digital signatures"},
		{name: "one for servers only", leaf: options{pkitest.Usages(x509.ExtKeyUsageServerAuth)}, reason: pki.Unfit, says: "usage"},
		{name: "one for clients only", leaf: options{pkitest.Usages(x509.ExtKeyUsageClientAuth)}, reason: pki.Unfit, says: "usage"},
		{name: "an intermediate for servers only", mid: options{pkitest.Usages(x509.ExtKeyUsageServerAuth)}, reason: pki.Unfit, says: "usage"},

		{name: "no certificate", reason: pki.Malformed, says: "no certificate", change: func(_ *testing.T, w *fixture) { w.pair.Chain = nil }},
		{name: "as many certificates as may be", change: func(_ *testing.T, w *fixture) { w.pad(pki.MaxChain) }},
		{name: "one certificate too many", reason: pki.Oversized, says: "11 certificates: want 10", change: func(_ *testing.T, w *fixture) { w.pad(pki.MaxChain + 1) }},
		{name: "too many bytes", reason: pki.Oversized, says: "bytes: want 65536",
			leaf: with(func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("n", pki.MaxChainBytes) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newFixture(t, tc.root, tc.mid, tc.leaf)
			if tc.change != nil {
				tc.change(t, w)
			}
			v := w.verify(t, tc.reason, tc.says)
			if tc.reason == "" && (!v.Root.Equal(w.root.Cert) || v.Until.IsZero() || v.From.After(now)) {
				t.Errorf("verified as %v", v)
			}
		})
	}
}

// pad repeats the last certificate of a chain.
func (w *fixture) pad(n int) {
	last := w.pair.Chain[len(w.pair.Chain)-1]
	for len(w.pair.Chain) < n {
		w.pair.Chain = append(w.pair.Chain, last)
	}
}

func TestChainOfExactlyTheMostBytesIsNotOversized(t *testing.T) {
	w := newFixture(t, nil, nil, nil)
	c := *w.pair.Chain[1]
	c.Raw = append(c.Raw[:len(c.Raw):len(c.Raw)], make([]byte, pki.MaxChainBytes-len(c.Raw)-len(w.pair.Chain[0].Raw))...)
	w.pair.Chain[1] = &c
	if _, err := w.want.Verify(w.pair.Chain, now); pki.ReasonOf(err, "") == pki.Oversized {
		t.Error(err)
	}
	c.Raw = append(c.Raw, 0)
	w.verify(t, pki.Oversized, "65537 bytes")
}

func TestUntilIsTheEarliestEndOfTheChainAndFromTheLatestBegin(t *testing.T) {
	early, late := now.Add(2*time.Hour), now.Add(20*time.Hour)
	before := now.Add(-time.Minute)
	valid := func(from, until time.Time) options { return options{pkitest.Valid(from, until)} }
	usual := now.Add(-time.Hour)
	for _, tc := range []struct {
		name            string
		root, mid, leaf options
		from, until     time.Time
	}{
		{"all the same", valid(usual, late), valid(usual, late), valid(usual, late), usual, late},
		{"the leaf is shortest", valid(usual, late), valid(usual, late), valid(before, early), before, early},
		{"the intermediate is shortest", valid(usual, late), valid(before, early), valid(usual, late), before, early},
		{"the root is shortest", valid(before, early), valid(usual, late), valid(usual, late), before, early},
		{"the leaf begins later", nil, nil, valid(early, late), early, late},
		{"the intermediate begins later", nil, valid(early, late), valid(usual, late), early, late},
		{"the root begins later", valid(early, late), nil, valid(usual, late), early, late},
		{"each begins later than the one below", valid(early.Add(2*time.Hour), late), valid(early.Add(time.Hour), late), valid(early, late), early.Add(2 * time.Hour), late},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newFixture(t, tc.root, tc.mid, tc.leaf).verify(t, "", "")
			if !v.From.Equal(tc.from) || !v.Until.Equal(tc.until) {
				t.Errorf("from %v until %v, want from %v until %v", v.From, v.Until, tc.from, tc.until)
			}
		})
	}
}

func TestOfTwoChainsTheOneThatLastsLongerCounts(t *testing.T) {
	for _, tc := range []struct {
		name        string
		first, last time.Duration
	}{
		{"the first lasts longer", 20 * time.Hour, 2 * time.Hour},
		{"the second lasts longer", 2 * time.Hour, 20 * time.Hour},
		{"the first has ended", -time.Second, 20 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			one, two := pkitest.Root(t, "one", now), pkitest.Root(t, "two", now)
			mid := one.Intermediate(t, "mid", pkitest.Until(now.Add(tc.first)))
			again := mid.Under(t, two, pkitest.Until(now.Add(tc.last)))
			chain := append(mid.Leaf(t).Chain, again.Cert)
			root := one
			if tc.last > tc.first {
				root = two
			}
			v, err := pki.Expectation{Roots: append(one.Roots(), two.Roots()...)}.Verify(chain, now)
			if err != nil || !v.Until.Equal(now.Add(20*time.Hour)) || !v.Root.Equal(root.Cert) {
				t.Errorf("%v, %v", v, err)
			}
		})
	}
}

func TestOfTwoChainsThatBeginLaterTheOneThatBeginsFirstCounts(t *testing.T) {
	hour := func(h int) time.Time { return now.Add(time.Duration(h) * time.Hour) }
	root := pkitest.Root(t, "root", now)
	soon := root.Intermediate(t, "mid", pkitest.Valid(hour(1), hour(20)))
	later := soon.Under(t, root, pkitest.Valid(hour(5), hour(22)))
	chain := append(soon.Leaf(t).Chain, later.Cert)
	v, err := pki.Expectation{Roots: root.Roots()}.Verify(chain, now)
	if err != nil || !v.From.Equal(hour(1)) || !v.Until.Equal(hour(20)) {
		t.Errorf("%v, %v", v, err)
	}
}

func TestWhereClientsAndServersHaveChainsOfTheirOwnWhatBothHaveInCommonCounts(t *testing.T) {
	minute := func(m int) time.Time { return now.Add(time.Duration(m) * time.Minute) }
	for _, tc := range []struct {
		name             string
		servers, clients [2]int // from and until, in minutes
		want             [2]int
	}{
		{"that of servers is shorter", [2]int{-10, 20}, [2]int{-30, 60}, [2]int{-10, 20}},
		{"that of clients is shorter", [2]int{-30, 60}, [2]int{-10, 20}, [2]int{-10, 20}},
		{"they overlap", [2]int{-10, 60}, [2]int{-30, 20}, [2]int{-10, 20}},
		{"they overlap the other way round", [2]int{-30, 20}, [2]int{-10, 60}, [2]int{-10, 20}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			one, two := pkitest.Root(t, "one", now), pkitest.Root(t, "two", now)
			servers := one.Intermediate(t, "mid", pkitest.Usages(x509.ExtKeyUsageServerAuth), pkitest.Valid(minute(tc.servers[0]), minute(tc.servers[1])))
			clients := servers.Under(t, two, pkitest.Usages(x509.ExtKeyUsageClientAuth), pkitest.Valid(minute(tc.clients[0]), minute(tc.clients[1])))
			v, err := pki.Expectation{Roots: append(one.Roots(), two.Roots()...)}.Verify(append(servers.Leaf(t).Chain, clients.Cert), now)
			// The root is that of the chain that ends first.
			root := one
			if tc.clients[1] < tc.servers[1] {
				root = two
			}
			if err != nil || !v.From.Equal(minute(tc.want[0])) || !v.Until.Equal(minute(tc.want[1])) || !v.Root.Equal(root.Cert) {
				t.Errorf("%v, %v", v, err)
			}
		})
	}
}

func TestLaxTakesWhatOthersMadeForPurposesOfTheirOwn(t *testing.T) {
	for _, tc := range []struct {
		name      string
		leaf      options
		rootless  bool
		stranger  bool
		reason    pki.Reason
		notBefore time.Duration
	}{
		{name: "for servers only", leaf: options{pkitest.Usages(x509.ExtKeyUsageServerAuth)}},
		{name: "for clients only", leaf: options{pkitest.Usages(x509.ExtKeyUsageClientAuth)}},
		{name: "for neither", leaf: options{pkitest.Usages(x509.ExtKeyUsageCodeSigning)}},
		{name: "an authority", leaf: with(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign })},
		{name: "whatever root, if there are none", rootless: true},
		{name: "another root", stranger: true, reason: pki.Untrusted},
		{name: "another name", leaf: options{pkitest.URIs("spiffe://example.org/b")}, rootless: true, reason: pki.WrongName},
		{name: "one that ended", leaf: options{pkitest.Until(now)}, rootless: true, reason: pki.Expired},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newFixture(t, nil, nil, tc.leaf)
			w.want.Lax = true
			switch {
			case tc.rootless:
				w.want.Roots = nil
			case tc.stranger:
				w.want.Roots = pkitest.Root(t, "root", now).Roots()
			}
			v := w.verify(t, tc.reason, "")
			leaf := w.pair.Leaf()
			if tc.reason == "" && (!v.From.Equal(leaf.NotBefore) || !v.Until.Equal(leaf.NotAfter) || tc.rootless != (v.Root == nil)) {
				t.Errorf("verified as %v", v)
			}
		})
	}
}

func TestReasonIsFoundBelowOtherErrors(t *testing.T) {
	fault := &pki.Fault{Reason: pki.Expired, Err: errors.New("inner")}
	if got := pki.ReasonOf(errors.Join(errors.New("a"), fault), pki.Untrusted); got != pki.Expired {
		t.Errorf("got %s", got)
	}
	if got := pki.ReasonOf(errors.New("a"), pki.Untrusted); got != pki.Untrusted {
		t.Errorf("got %s", got)
	}
	if !errors.Is(fault, fault.Err) || fault.Error() != "inner" {
		t.Errorf("%v hides what it is made of", fault)
	}
}

func TestAnswerIsSplitIntoChainAndRoots(t *testing.T) {
	root, other := pkitest.Root(t, "root", now), pkitest.Root(t, "other", now)
	mid := root.Intermediate(t, "mid")
	leaf := mid.Leaf(t).Leaf()
	type list = []*x509.Certificate
	for _, tc := range []struct {
		name               string
		certs, chain, root list
	}{
		{"nothing", nil, nil, nil},
		{"a leaf", list{leaf}, list{leaf}, nil},
		{"without a root", list{leaf, mid.Cert}, list{leaf, mid.Cert}, nil},
		{"with its root", list{leaf, mid.Cert, root.Cert}, list{leaf, mid.Cert}, list{root.Cert}},
		{"with two roots", list{leaf, mid.Cert, root.Cert, other.Cert}, list{leaf, mid.Cert}, list{root.Cert, other.Cert}},
		{"a root in between stays", list{leaf, root.Cert, mid.Cert}, list{leaf, root.Cert, mid.Cert}, nil},
		{"a root alone is a leaf", list{root.Cert}, list{root.Cert}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := pki.Split(tc.certs)
			if !sameCerts(got.Chain, tc.chain) || !sameCerts(got.Roots, tc.root) {
				t.Errorf("%d and %d certificates, want %d and %d", len(got.Chain), len(got.Roots), len(tc.chain), len(tc.root))
			}
		})
	}
}

func TestOnlyWhatIsSignedWithItsOwnKeyIsSelfSigned(t *testing.T) {
	root := pkitest.Root(t, "root", now)
	// Its issuer has the same name, and another key.
	same := root.Intermediate(t, "root")
	for _, tc := range []struct {
		name string
		cert *x509.Certificate
		want bool
	}{
		{"a root", root.Cert, true},
		{"an intermediate", root.Intermediate(t, "mid").Cert, false},
		{"an intermediate with the name of its root", same.Cert, false},
		{"a root with the name of another", pkitest.Root(t, "root", now).Cert, true},
		{"with the key of its issuer, under another name", root.Sign(t, root.Key.Public())[0], false},
		{"with the key of a root, signed by another", root.Under(t, pkitest.Root(t, "other", now)).Cert, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := pki.SelfSigned(tc.cert); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func sameCerts(a, b []*x509.Certificate) bool {
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
