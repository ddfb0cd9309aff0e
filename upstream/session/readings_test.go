package session

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// FuzzReadingsAreAsIfReadAnew plays one conversation with two SotW machines. The responses of one
// share unchanged entries by pointer, as package upstream/codec does; those of the other are deep
// clones, so that no reading is ever reused. The outputs of both must be the same. More seeds are
// in testdata/fuzz.
func FuzzReadingsAreAsIfReadAnew(f *testing.F) {
	f.Add([]byte("\x04\x00\x00\x00\x05\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, input []byte) {
		tw := newTwins(t)
		for op, arg := range xdstest.Steps(input, 200) {
			tw.step(op, arg)
		}
		tw.say("after an hour")
		tw.now = tw.now.Add(time.Hour)
		tw.take()
	})
}

// twinTypes are the types of the responses: full-state types and others.
var twinTypes = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, "example.Gizmo"}

// twins are a machine whose responses share entries, one whose responses are clones, and the server
// of both.
type twins struct {
	*testing.T
	shared, cloned *Session
	versions       [2]map[string]Version
	now            time.Time
	nonces         int
	wanted         map[string]map[string]bool
	cached         map[string]map[string]string
	// The server: the resources of its next response by type, everything that it ever sent, its
	// version and its nonce.
	next    map[string][]*anypb.Any
	made    map[string]*anypb.Any
	failed  map[string][]*discoveryv3.ResourceError
	version map[string]string
	newest  map[string]string
	log     []string
}

func newTwins(t *testing.T) *twins {
	tw := &twins{
		T: t, now: time.Unix(1e9, 0),
		wanted: make(map[string]map[string]bool), cached: make(map[string]map[string]string),
		next: make(map[string][]*anypb.Any), made: make(map[string]*anypb.Any), failed: make(map[string][]*discoveryv3.ResourceError),
		version: make(map[string]string), newest: make(map[string]string),
	}
	for i, s := range []**Session{&tw.shared, &tw.cloned} {
		tw.versions[i] = make(map[string]Version)
		*s = New(Config{
			Form: xds.SotW, Versions: tw.versions[i],
			Cached: func(typeURL string) map[string]string { return maps.Clone(tw.cached[typeURL]) },
		})
	}
	for _, url := range twinTypes {
		tw.want(url, true, []string{"*", "a"}[len(tw.wanted)%2])
	}
	tw.take()
	return tw
}

func (tw *twins) say(format string, args ...any) {
	tw.log = append(tw.log, fmt.Sprintf(format, args...))
}

func (tw *twins) fail(format string, args ...any) {
	tw.Helper()
	tw.Fatalf("%s\n%s", strings.Join(tw.log, "\n"), fmt.Sprintf(format, args...))
}

// step runs the step that two bytes encode: a change of the next response, a response, or another
// event of a stream. The low half of arg selects the name.
func (tw *twins) step(op, arg byte) {
	url := twinTypes[int(arg>>6)]
	name := []string{"a", "b", "c", "d"}[arg&3]
	content := fmt.Sprint(arg >> 2 & 3)
	switch op % 16 {
	case 0, 1, 2, 3:
		tw.respond(url)
	case 4, 5:
		tw.replace(url, name, tw.bare(url, name, content))
	case 6:
		tw.replace(url, name, nil)
	case 7: // in addition to the existing entries: the same pointer, or another content
		tw.add(url, tw.bare(url, name, content))
	case 8: // the same content again, not shared
		tw.add(url, proto.CloneOf(tw.bare(url, name, content)))
	case 9:
		tw.add(url, tw.odd(url, name, arg>>2&7))
	case 10:
		if n := len(tw.next[url]); n > 0 { // the order has no meaning
			tw.next[url] = append(tw.next[url][n-1:], tw.next[url][:n-1]...)
		}
	case 11:
		tw.failed[url] = append(tw.failed[url], &discoveryv3.ResourceError{ResourceName: &discoveryv3.ResourceName{Name: name}})
	case 12:
		tw.version[url] = []string{"", "-", "fixed"}[arg>>2%3] // "" means another version each time
	case 13:
		tw.want(url, arg&4 == 0, []string{"*", name}[arg>>3&1])
		tw.take()
	case 14:
		tw.judge(url, arg&1 == 1)
	case 15:
		tw.now = tw.now.Add(fuzzPauses[arg&3])
		tw.say("after %v", fuzzPauses[arg&3])
		tw.take()
	}
}

// bare is a resource without a wrapper; there is one pointer for each content.
func (tw *twins) bare(url, name, content string) *anypb.Any {
	return tw.once(url+name+content, url, body(name, content))
}

func (tw *twins) once(key, url string, value []byte) *anypb.Any {
	if tw.made[key] == nil {
		tw.made[key] = &anypb.Any{TypeUrl: url, Value: value}
	}
	return tw.made[key]
}

// odd is an entry in a wrapper, or a malformed one.
func (tw *twins) odd(url, name string, kind byte) *anypb.Any {
	key := fmt.Sprint(url, name, " odd ", kind)
	switch kind {
	case 0:
		return tw.once(key, url, nil)
	case 1:
		return tw.once(key, "other", body(name, "1"))
	case 2:
		return tw.once(key, url, append(body(name, "1"), 0x1a, 9))
	case 3: // the name of the cluster can be read, and the name of its endpoints cannot
		return tw.once(key, url, append(body(name, "1"), 0x10, 3, 0x1a, 3, 0x12, 1, 0xff))
	}
	w := &discoveryv3.Resource{Name: name, Version: "w", Resource: tw.bare(url, name, "1")}
	switch kind {
	case 4:
		w.Ttl = durationpb.New(time.Minute)
	case 5: // a heartbeat
		w.Resource, w.Ttl = nil, durationpb.New(time.Minute)
	case 6:
		w.Aliases = []string{"d"}
	}
	value, err := proto.Marshal(w)
	if err != nil {
		tw.Fatal(err)
	}
	return tw.once(key, xds.WrapperType, value)
}

func (tw *twins) add(url string, entry *anypb.Any) { tw.next[url] = append(tw.next[url], entry) }

// replace removes all entries of a name, and adds an entry, if there is one.
func (tw *twins) replace(url, name string, entry *anypb.Any) {
	tw.next[url] = slices.DeleteFunc(tw.next[url], func(e *anypb.Any) bool {
		r, _ := xds.FromAny(url, "", e, tw.now)
		return r == nil || r.Name == name // an entry without a name is removed too
	})
	if entry != nil {
		tw.add(url, entry)
	}
}

func (tw *twins) want(url string, more bool, name string) {
	if tw.wanted[url] == nil {
		tw.wanted[url] = make(map[string]bool)
	}
	tw.say("want %s %s %v", xds.Short(url), name, more)
	tw.wanted[url][name] = more
	var add, drop []string
	switch {
	case name == xds.Wildcard:
	case more:
		add = []string{name}
	default:
		drop = []string{name}
	}
	for _, s := range []*Session{tw.shared, tw.cloned} {
		s.Subscribe(url, tw.wanted[url][xds.Wildcard], add, drop)
	}
}

func (tw *twins) judge(url string, nack bool) {
	var reason error
	if nack {
		reason = errors.New("no good")
	}
	tw.say("reason %s: %v", tw.newest[url], reason)
	got, want := tw.shared.Answer(url, tw.newest[url], reason, tw.now), tw.cloned.Answer(url, tw.newest[url], reason, tw.now)
	if got != want {
		tw.fail("late %v, want %v", got, want)
	}
	tw.take()
}

// respond passes one response to both machines.
func (tw *twins) respond(url string) {
	tw.nonces++
	m := &discoveryv3.DiscoveryResponse{TypeUrl: url, Nonce: fmt.Sprint("n", tw.nonces), VersionInfo: tw.version[url],
		Resources: slices.Clone(tw.next[url]), ResourceErrors: tw.failed[url]}
	switch m.VersionInfo {
	case "":
		m.VersionInfo = fmt.Sprint("v", tw.nonces)
	case "-":
		m.VersionInfo = ""
	}
	delete(tw.failed, url)
	tw.newest[url] = m.Nonce
	tw.say("response %s %s of %d, %d errors", xds.Short(url), m.Nonce, len(m.Resources), len(m.ResourceErrors))
	for _, e := range m.Resources {
		tw.say("    %p %q", e, e.GetValue())
	}
	want, wantErr := tw.cloned.SotW(proto.CloneOf(m), tw.now)
	got, err := tw.shared.SotW(m, tw.now)
	if (err == nil) != (wantErr == nil) {
		tw.fail("error %v, want %v", err, wantErr)
	}
	if err != nil {
		return
	}
	if g, w := said(got), said(want); !reflect.DeepEqual(g, w) {
		tw.fail("got  %q\nwant %q", g, w)
	}
	once := make(map[string]bool)
	for _, r := range got.Resources {
		if once[r.Name] {
			tw.fail("%s: %s is put twice", m.Nonce, r.Name)
		}
		once[r.Name] = true
	}
	tw.cached[url] = make(map[string]string)
	for _, r := range got.Resources {
		tw.cached[url][r.Name] = r.UpstreamVersion
	}
	tw.take()
}

// said is the content of an update, without how often and why a name has errors: of an entry that
// occurs twice, either may be found first.
func said(u *Response) []string {
	out := []string{fmt.Sprintf("%s %s remove %v complete %v wildcard %v silent %v first %v", u.Type, u.Nonce, u.Removed, u.Complete, u.Wildcard, u.Timeout, u.First)}
	for _, r := range u.Resources {
		out = append(out, fmt.Sprintf("put %s@%s %s %v %v %s", r.Name, r.Version, r.UpstreamVersion, r.Aliases(), r.Deadline(), r.EDSName))
	}
	for _, r := range u.Heartbeats {
		out = append(out, fmt.Sprintf("refresh %+v", r))
	}
	for _, e := range u.Errors {
		out = append(out, "error "+e.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// take compares all requests of the machines.
func (tw *twins) take() {
	for range 100 {
		wantTypes, wantAt := tw.cloned.Completed(tw.now)
		if types, at := tw.shared.Completed(tw.now); !slices.Equal(types, wantTypes) || !at.Equal(wantAt) {
			tw.fail("settled %v %v, want %v %v", types, at, wantTypes, wantAt)
		}
		wantLate, wantAt := tw.cloned.Overdue(tw.now)
		if late, at := tw.shared.Overdue(tw.now); !reflect.DeepEqual(late, wantLate) || !at.Equal(wantAt) {
			tw.fail("overdue %v %v, want %v %v", late, at, wantLate, wantAt)
		}
		if got, want := tw.shared.Reopen(), tw.cloned.Reopen(); got != want {
			tw.fail("reopen %v, want %v", got, want)
		}
		want, wantAt := tw.cloned.Next(tw.now)
		got, at := tw.shared.Next(tw.now)
		if got != nil && want != nil && got.NACK != "" && want.NACK != "" {
			got.NACK = want.NACK // see said
		}
		if !reflect.DeepEqual(got, want) || !at.Equal(wantAt) {
			tw.fail("got request %+v %v\nwant %+v %v", got, at, want, wantAt)
		}
		if !reflect.DeepEqual(tw.versions[0], tw.versions[1]) {
			tw.fail("versions %v, want %v", tw.versions[0], tw.versions[1])
		}
		if got == nil {
			return
		}
		tw.say("-> %+v", *got)
	}
	tw.fail("a hundred requests at once")
}

// answered passes responses to a machine that subscribes to everything of a type, and returns the
// update of the last one.
func answered(t *testing.T, url string, responses ...[]*anypb.Any) *Response {
	t.Helper()
	s := New(Config{Form: xds.SotW})
	s.Subscribe(url, true, nil, nil)
	s.Next(time.Unix(1e9, 0))
	var last *Response
	for i, entries := range responses {
		u, err := s.SotW(&discoveryv3.DiscoveryResponse{TypeUrl: url, VersionInfo: fmt.Sprint("v", i), Nonce: fmt.Sprint("n", i), Resources: entries}, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		last = u
	}
	return last
}

// entry is a resource without a wrapper, with another pointer each time.
func entry(url, nameContent string) *anypb.Any {
	name, content, _ := strings.Cut(nameContent, "@")
	return &anypb.Any{TypeUrl: url, Value: body(name, content)}
}

func named(list []*xds.Resource) (out []string) {
	for _, r := range list {
		out = append(out, r.Name)
	}
	return out
}

// protocol.md 1.10: the first is used, and only of different contents it is unknown which is meant.
func TestOfDuplicatesTheFirstIsUsedThoughItIsUnchanged(t *testing.T) {
	url := xds.ClusterType
	a, b, again := entry(url, "a@1"), entry(url, "b@1"), entry(url, "a@1")
	for _, tc := range []struct {
		name      string
		responses [][]*anypb.Any
		errors    int
	}{
		{"of one pointer", [][]*anypb.Any{{a, b}, {a, b, a}}, 0},
		{"of another", [][]*anypb.Any{{a, b}, {a, b, again}}, 0},
		{"of another content", [][]*anypb.Any{{a, b}, {a, b, entry(url, "a@2")}}, 1},
		{"of another content, before", [][]*anypb.Any{{entry(url, "a@2"), b}, {a, b, entry(url, "a@2")}}, 1},
		{"of one pointer, a second time", [][]*anypb.Any{{a, b, a}, {a, b, a}}, 0},
		{"of another, a second time", [][]*anypb.Any{{a, b, again}, {a, b, again}}, 0},
		{"of three", [][]*anypb.Any{{a, again, b, a}}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := answered(t, url, tc.responses...)
			if len(u.Errors) != tc.errors || !slices.Equal(named(u.Resources), []string{"a", "b"}) || u.Resources[0].Version != answered(t, url, []*anypb.Any{a}).Resources[0].Version || u.Complete != (tc.errors == 0) {
				t.Errorf("put %v, errors %v, complete %v", named(u.Resources), u.Errors, u.Complete)
			}
		})
	}
}

// Version.Contains has the names that came with the version_info, also if they did not change.
func TestAVersionStandsForTheNamesOfItsOwnResponse(t *testing.T) {
	url, versions := xds.ClusterType, make(map[string]Version)
	s := New(Config{Form: xds.SotW, Versions: versions})
	s.Subscribe(url, true, nil, nil)
	now := time.Unix(1e9, 0)
	s.Next(now)
	a, b, c := entry(url, "a@1"), entry(url, "b@1"), entry(url, "c@1")
	for i, m := range []*discoveryv3.DiscoveryResponse{
		{VersionInfo: "1", Resources: []*anypb.Any{a, b}},
		{VersionInfo: "", Resources: []*anypb.Any{a, c}},
		{VersionInfo: "3", Resources: []*anypb.Any{a, c}},
	} {
		m.TypeUrl, m.Nonce = url, fmt.Sprint("n", i)
		if _, err := s.SotW(m, now); err != nil {
			t.Fatal(err)
		}
		s.Answer(url, m.Nonce, nil, now)
		s.Next(now)
	}
	if got := versions[url]; got.Info != "3" || got.Contains != xds.NamesOf(slices.Values([]string{"a", "c"})) {
		t.Errorf("version %q stands for %v", got.Info, got.Contains)
	}
}

// The sender is woken for a response only if it would otherwise look too late.
func TestAResponseHasTheTimeOfTheNextCall(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		name  string
		form  xds.Form
		entry *anypb.Any
		want  time.Time
	}{
		{"an ACK waits for the clients", xds.SotW, entry(xds.ClusterType, "a=1"), now.Add(DefaultAckTimeout)},
		{"a NACK does not", xds.SotW, &anypb.Any{TypeUrl: xds.ListenerType}, now},
		{"a wildcard settles", xds.Delta, entry(xds.ClusterType, "a=1"), now.Add(QuietTime)},
	} {
		s := New(Config{Form: tc.form})
		s.Subscribe(xds.ClusterType, true, nil, nil)
		s.Next(now)
		var u *Response
		var err error
		if tc.form == xds.SotW {
			u, err = s.SotW(&discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "1", VersionInfo: "1", Resources: []*anypb.Any{tc.entry}}, now)
		} else {
			u, err = s.Delta(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "1", Resources: []*discoveryv3.Resource{{Name: "a", Resource: tc.entry}}}, now)
		}
		if err != nil || !u.Wake.Equal(tc.want) {
			t.Errorf("%s: wake at %v (%v), want %v", tc.name, u.Wake, err, tc.want)
		}
		if req, _ := s.Next(u.Wake.Add(-1)); req != nil {
			t.Errorf("%s: before, a request is due: %+v", tc.name, req)
		}
		if req, _ := s.Next(u.Wake); req == nil && tc.form == xds.SotW {
			t.Errorf("%s: then no request is due", tc.name)
		}
	}
}
