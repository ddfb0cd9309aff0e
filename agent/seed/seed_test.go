package seed

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

var at = time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	body, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func resource(t testing.TB, w *discoveryv3.Resource) *xds.Resource {
	t.Helper()
	r, err := xds.FromWrapper(w.GetResource().GetTypeUrl(), w, at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// example is a seed with everything that a resource may have.
func example(t testing.TB) *Seed {
	return &Seed{
		Role: "web", At: at, Types: []string{xds.ClusterType, xds.ListenerType},
		LeftOut: map[string]int{"a Secret": 2},
		Resources: []*xds.Resource{
			resource(t, &discoveryv3.Resource{Name: "c2", Resource: pack(t, &clusterv3.Cluster{Name: "c2"}), Ttl: durationpb.New(time.Hour)}),
			resource(t, &discoveryv3.Resource{Name: "c1", Resource: pack(t, &clusterv3.Cluster{Name: "c1"})}),
			resource(t, &discoveryv3.Resource{Name: "r/other", Aliases: []string{"r/alias"}, Resource: pack(t, &routev3.VirtualHost{Name: "other"})}),
		},
	}
}

func newKey(t testing.TB, seed byte) ed25519.PrivateKey {
	t.Helper()
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

func encoded(t testing.TB, s *Seed, key ed25519.PrivateKey) []byte {
	t.Helper()
	data, err := Encode(s, key)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestASeedIsReadAsItWasWritten(t *testing.T) {
	in, key := example(t), newKey(t, 1)
	data := encoded(t, in, key)
	out, err := Decode(data, Trust{Keys: []ed25519.PublicKey{public(newKey(t, 2)), public(key)}})
	if err != nil {
		t.Fatal(err)
	}
	if out.Role != in.Role || !out.At.Equal(in.At) || !slices.Equal(out.Types, in.Types) || out.LeftOut["a Secret"] != 2 || out.SignedBy != Fingerprint(public(key)) {
		t.Errorf("%+v", out)
	}
	if len(out.Resources) != 3 {
		t.Fatalf("%d resources", len(out.Resources))
	}
	for _, want := range in.Resources {
		i := slices.IndexFunc(out.Resources, func(r *xds.Resource) bool { return r.Type == want.Type && r.Name == want.Name })
		if i < 0 {
			t.Errorf("%s %s is missing", want.Type, want.Name)
			continue
		}
		got := out.Resources[i]
		if got.Version != want.Version || got.TTL() != want.TTL() || !got.Deadline().Equal(want.Deadline()) || !slices.Equal(got.Aliases(), want.Aliases()) || !proto.Equal(got.Body, want.Body) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got.UpstreamVersion != "" {
			t.Errorf("%s has the version %q of an upstream", got.Name, got.UpstreamVersion)
		}
	}
	slices.Reverse(in.Resources)
	if !bytes.Equal(encoded(t, in, key), data) {
		t.Error("the same seed has other bytes")
	}
	if role, when, err := Peek(data); role != "web" || !when.Equal(at) || err != nil {
		t.Errorf("peeked at %q, %v, %v", role, when, err)
	}
}

// The TTL counts from the time of the seed, not from when it is read or was made.
func TestATTLGoesOn(t *testing.T) {
	s := example(t)
	s.At = at.Add(20 * time.Minute)
	out, err := Decode(encoded(t, s, nil), Trust{Unsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(out.Resources, func(r *xds.Resource) bool { return r.Name == "c2" })
	if c2 := out.Resources[i]; c2.TTL() != 40*time.Minute || !c2.Deadline().Equal(at.Add(time.Hour)) {
		t.Errorf("TTL %s until %s", c2.TTL(), c2.Deadline())
	}
	s.At = at.Add(time.Hour)
	if _, err := Encode(s, nil); err == nil {
		t.Error("a resource whose TTL has ended is in the seed")
	}
}

func TestOnlyAGoodSignatureCounts(t *testing.T) {
	key, other := newKey(t, 1), newKey(t, 2)
	signed, plain := encoded(t, example(t), key), encoded(t, example(t), nil)
	changed := bytes.Clone(signed)
	changed[len(changed)-9]++ // in the stream
	foreign := bytes.Replace(encoded(t, example(t), other), []byte(Fingerprint(public(other))), []byte(Fingerprint(public(key))), 1)
	var stream bytes.Buffer
	for name, tc := range map[string]struct {
		data  []byte
		trust Trust
		want  string // "" for none
	}{
		"signed by a trusted key":        {signed, Trust{Keys: []ed25519.PublicKey{public(key)}}, ""},
		"of a trusted place":             {plain, Trust{Unsigned: true}, ""},
		"signed, of a trusted place":     {signed, Trust{Unsigned: true}, ""},
		"of no trusted place":            {plain, Trust{}, "name the keys to trust with --seed-trust"},
		"signed, and no key":             {signed, Trust{}, "name the keys to trust with --seed-trust"},
		"a trusted place is not enough":  {plain, Trust{Keys: []ed25519.PublicKey{public(key)}, Unsigned: true}, "it is not signed"},
		"signed by another key":          {signed, Trust{Keys: []ed25519.PublicKey{public(other)}}, "a key that is not in --seed-trust"},
		"another key by a trusted name":  {foreign, Trust{Keys: []ed25519.PublicKey{public(key)}}, "it was changed or damaged"},
		"changed":                        {changed, Trust{Keys: []ed25519.PublicKey{public(key)}}, "it was changed or damaged"},
		"changed, of a trusted place":    {changed, Trust{Unsigned: true}, "it is damaged"},
		"cut":                            {signed[:len(signed)-1], Trust{Unsigned: true}, "it is damaged"},
		"cut in the second line":         {signed[:30], Trust{Unsigned: true}, "ends in its second line"},
		"without a signature's line":     {append([]byte(magic+"sha256 x y\n"), stream.Bytes()...), Trust{Unsigned: true}, "its second line is no signature"},
		"a signature that is no base64":  {[]byte(magic + "ed25519 x ?\n"), Trust{Keys: []ed25519.PublicKey{public(key)}}, "its signature is no base64"},
		"a signature of another length":  {[]byte(magic + "ed25519 x AAAA\n"), Trust{Keys: []ed25519.PublicKey{public(key)}}, "a key that is not in --seed-trust"},
		"of a later version of holdfast": {[]byte("holdfast seed 2\nx\n"), Trust{Unsigned: true}, "of a later version"},
		"empty":                          {nil, Trust{Unsigned: true}, "nothing was published yet"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Decode(tc.data, tc.trust)
			if tc.want == "" && (err != nil || len(s.Resources) != 3) || tc.want != "" && (s != nil || err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%+v, %v, want %q", s, err, tc.want)
			}
		})
	}
}

// zipped returns a seed with any stream.
func zipped(t testing.TB, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	if _, err := zip.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return slices.Concat([]byte(magic+unsigned+"\n"), b.Bytes())
}

func TestADamagedContentIsRejected(t *testing.T) {
	const head = `{"role":"web","at":"2026-03-01T03:00:00Z","resources":%d}` + "\n"
	entry := func(w *discoveryv3.Resource) string {
		var b bytes.Buffer
		if _, err := deterministic.MarshalTo(&b, w); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	c1 := entry(&discoveryv3.Resource{Name: "c1", Resource: pack(t, &clusterv3.Cluster{Name: "c1"})})
	for name, tc := range map[string]struct{ content, want string }{
		"nothing":                 {"", "its header"},
		"no line":                 {`{"role":"web"}`, "its header"},
		"no JSON":                 {"role: web\n", "its header"},
		"no time":                 {`{"role":"web","resources":0}` + "\n", "the time is missing"},
		"fewer than it says":      {fmt.Sprintf(head, 2) + c1, "it has 1 resources, and says 2"},
		"more than it says":       {fmt.Sprintf(head, 0) + c1, "it has 1 resources, and says 0"},
		"twice":                   {fmt.Sprintf(head, 2) + c1 + c1, `CDS "c1" is in it twice`},
		"no content":              {fmt.Sprintf(head, 1) + entry(&discoveryv3.Resource{Name: "c1"}), "has no content"},
		"a resource that is none": {fmt.Sprintf(head, 1) + "\x05abcde", ""},
		"a resource that is cut":  {fmt.Sprintf(head, 1) + c1[:len(c1)-1], ""},
		"a size without an end":   {fmt.Sprintf(head, 1) + strings.Repeat("\xff", 20), ""},
		"a size beyond the limit": {fmt.Sprintf(head, 1) + "\xff\xff\xff\xff\x7f", ""},
		"a long header":           {`{"role":"` + strings.Repeat("x", maxHeader) + `"}` + "\n", "its header"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Decode(zipped(t, tc.content), Trust{Unsigned: true})
			if s != nil || err == nil || !strings.Contains(err.Error(), "it is damaged: ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v, %v, want %q", s, err, tc.want)
			}
		})
	}
}

func TestPartsMakeAWhole(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 10000)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	data = append([]byte(magic), data...)
	if one := Split(data, len(data)); len(one) != 1 || !bytes.Equal(one[0], data) {
		t.Errorf("%d parts of what fits into one", len(one))
	}
	parts := Split(data, 1000)
	old := Split(append([]byte(magic), bytes.Repeat([]byte("old"), 5000)...), 1000)
	if len(parts) < 11 {
		t.Fatalf("%d parts", len(parts))
	}
	for _, p := range parts {
		if len(p) > 1000 {
			t.Errorf("a part of %d bytes", len(p))
		}
	}
	damaged := slices.Clone(parts)
	damaged[3] = append(bytes.Clone(damaged[3]), 'x')
	for name, tc := range map[string]struct {
		files [][]byte
		want  string // of the error; "" for none
	}{
		"in order":           {parts, ""},
		"with old ones":      {append(slices.Clone(parts), old[3:]...), ""},
		"with other files":   {append([][]byte{[]byte("README"), {}}, parts...), ""},
		"twice":              {slices.Concat(parts, parts), ""},
		"as one":             {[][]byte{data}, ""},
		"one is missing":     {parts[1:], "it is not complete"},
		"mixed with another": {slices.Concat(parts[:4], old[4:]), "it is not complete"},
		"one is damaged":     {damaged, "one whose parts are damaged"},
		"nothing":            {nil, "nothing was published yet"},
		"no numbers":         {[][]byte{[]byte(partMagic + "x y z\n")}, "nothing was published yet"},
	} {
		t.Run(name, func(t *testing.T) {
			shuffled := slices.Clone(tc.files)
			random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			got, err := Join(shuffled)
			if tc.want == "" && (err != nil || !bytes.Equal(got, data)) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%d bytes, %v, want %q", len(got), err, tc.want)
			}
		})
	}
}

// Whatever is in a file: no panic, and what is accepted is the same after it was written again.
func FuzzDecode(f *testing.F) {
	f.Add(encoded(f, example(f), nil))
	f.Add(encoded(f, example(f), newKey(f, 1)))
	f.Add(zipped(f, `{"role":"web","at":"2026-03-01T03:00:00Z","resources":0}`+"\n"))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = Join([][]byte{data, data})
		_, _, _ = Peek(data)
		s, err := Decode(data, Trust{Unsigned: true})
		if err != nil {
			return
		}
		again, err := Encode(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		s2, err := Decode(again, Trust{Unsigned: true})
		if err != nil || s2.Role != s.Role || len(s2.Resources) != len(s.Resources) {
			t.Fatalf("%+v became %+v, %v", s, s2, err)
		}
	})
}
