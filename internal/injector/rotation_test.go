package injector

import (
	"bytes"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

var (
	began      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	testPolicy = policy{names: pki.Names{DNS: []string{"holdfast-injector.holdfast.svc"}}, caLifetime: 300 * time.Hour, certLifetime: 24 * time.Hour}
)

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func yes(*x509.Certificate) bool { return true }
func no(*x509.Certificate) bool  { return false }

// verifies reports whether a caBundle trusts what the authorities sign.
func verifies(t *testing.T, p policy, signs authorities, bundle []byte, now time.Time) bool {
	t.Helper()
	pair := must[pki.Pair](t)(p.sign(signs, now))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := pair.Leaf().Verify(x509.VerifyOptions{Roots: pool, DNSName: p.names.DNS[0], CurrentTime: now})
	return err == nil
}

func TestTheAuthorityIsReplacedInThreeSteps(t *testing.T) {
	p := testPolicy
	a := must[authorities](t)(p.first(began))
	first := a.current.Leaf()
	renew, overlap := 200*time.Hour, time.Hour
	for _, step := range []struct {
		name    string
		at      time.Duration
		trusted func(*x509.Certificate) bool
		want    string
		roots   int
	}{
		{"nothing is due", renew - time.Second, yes, "", 1},
		{"a third of the lifetime is left", renew, yes, "the next authority is trusted from now on", 2},
		{"not every API server has seen it", renew + overlap - time.Second, yes, "", 2},
		{"the caBundle does not have it", renew + 2*overlap, no, "", 2},
		{"it signs", renew + 3*overlap, yes, "the next authority signs from now on", 2},
		{"certificates of the former one are valid", renew + 3*overlap + 24*time.Hour - time.Second, yes, "", 2},
		{"they are expired", renew + 3*overlap + 24*time.Hour, yes, "the former authority is not trusted any more", 1},
		{"nothing is due again", renew + 5*overlap + 24*time.Hour, yes, "", 1},
	} {
		now := began.Add(step.at)
		after, what, err := p.step(a, now, step.trusted)
		if err != nil || what != step.want || len(after.roots()) != step.roots {
			t.Fatalf("%s: %q, %d roots, %v", step.name, what, len(after.roots()), err)
		}
		if !verifies(t, p, after, a.bundle(), now) {
			t.Errorf("%s: the caBundle of before does not trust what is signed after", step.name)
		}
		if !verifies(t, p, a, after.bundle(), now) && step.roots != 1 {
			t.Errorf("%s: the caBundle of after does not trust what was signed before", step.name)
		}
		a = after
	}
	if a.current.Leaf().Equal(first) {
		t.Error("the first authority is still there")
	}
}

func TestAnExpiredAuthorityIsReplacedAtOnce(t *testing.T) {
	a := must[authorities](t)(testPolicy.first(began))
	now := began.Add(testPolicy.caLifetime)
	after, what, err := testPolicy.step(a, now, no)
	if err != nil || what != "the authority had expired and was replaced" || len(after.roots()) != 1 {
		t.Fatal(what, err)
	}
	if !verifies(t, testPolicy, after, after.bundle(), now) {
		t.Error("the new one signs nothing that is trusted")
	}
}

func TestTheAuthoritySignsForNobodyElse(t *testing.T) {
	a := must[authorities](t)(testPolicy.first(began))
	other := testPolicy
	other.names = pki.Names{DNS: []string{"kubernetes.default.svc"}}
	if _, err := other.sign(a, began); err == nil {
		t.Error("it signs for kubernetes.default.svc")
	}
	if err := other.holdsFor(a); err == nil || !strings.Contains(err.Error(), "holdfast-injector.holdfast.svc") {
		t.Error(err)
	}
}

func TestTheSecretIsReadAsItWasWritten(t *testing.T) {
	a := must[authorities](t)(testPolicy.first(began))
	next := must[pki.Pair](t)(testPolicy.newAuthority(began.Add(time.Hour)))
	both := authorities{current: a.current, next: &next, previous: must[pki.Pair](t)(testPolicy.newAuthority(began.Add(-time.Hour))).Leaf(), since: began}
	for _, want := range []authorities{a, both} {
		got, err := parseAuthorities(want.data())
		if err != nil || !maps.EqualFunc(got.data(), want.data(), bytes.Equal) || !slices.EqualFunc(got.roots(), want.roots(), (*x509.Certificate).Equal) {
			t.Errorf("%v: %v", err, slices.Sorted(maps.Keys(got.data())))
		}
	}
}

func TestWhatIsWrongInTheSecretIsSaid(t *testing.T) {
	a := must[authorities](t)(testPolicy.first(began))
	other := must[authorities](t)(testPolicy.first(began))
	leaf := must[pki.Pair](t)(testPolicy.sign(a, began))
	for name, row := range map[string]struct {
		change func(map[string][]byte)
		want   string
	}{
		"nothing":               {func(d map[string][]byte) { clear(d) }, errNoAuthority.Error()},
		"no key":                {func(d map[string][]byte) { delete(d, currentKey) }, "ca.crt and ca.key: "},
		"the key of another":    {func(d map[string][]byte) { d[currentKey] = other.current.KeyPEM() }, "ca.crt and ca.key: "},
		"no authority":          {func(d map[string][]byte) { d[currentCert], d[currentKey] = leaf.ChainPEM(), leaf.KeyPEM() }, "ca.crt: the certificate is not that of an authority"},
		"half of a next":        {func(d map[string][]byte) { d[nextCert] = a.current.ChainPEM() }, "next.crt and next.key: "},
		"a former one of words": {func(d map[string][]byte) { d[previousCert] = []byte("words") }, "previous.crt: "},
		"no time":               {func(d map[string][]byte) { d[sinceKey] = []byte("yesterday") }, "since: want a time"},
	} {
		data := a.data()
		row.change(data)
		if _, err := parseAuthorities(data); err == nil || !strings.HasPrefix(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", name, err, row.want)
		}
	}
}
