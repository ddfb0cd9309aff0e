package session

import (
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// large is a resource with a quarter of maxSuperseded.
func large(typeURL, name string, version int) *xds.Resource {
	return &xds.Resource{Type: typeURL, Name: name, Version: strconv.Itoa(version),
		Body: &anypb.Any{TypeUrl: typeURL, Value: make([]byte, maxSuperseded/4)}}
}

// unanswering is a client of all resources of a type that answers on demand.
type unanswering struct {
	t     *testing.T
	state *fakeState
	s     *Session
	url   string
}

func newUnanswering(t *testing.T, form xds.Form, url string) *unanswering {
	u := &unanswering{t: t, state: newFakeState(), s: New(Config{Form: form}), url: url}
	u.state.items[url] = make(map[string]xds.Item)
	u.state.knowledge[url] = xds.Complete
	req := &Request{Type: url}
	if form == xds.Delta {
		req.Subscribe = []string{xds.Wildcard}
	}
	u.s.Request(req)
	return u
}

// push changes resources, and returns the nonce of the response.
func (u *unanswering) push(version int, names ...string) string {
	u.t.Helper()
	for _, name := range names {
		u.state.items[u.url][name] = xds.Item{Current: large(u.url, name, version)}
	}
	u.state.revision++
	u.s.Changed(u.url, names, false)
	resp, _ := u.s.Next(u.state, time.Time{})
	if resp == nil {
		u.t.Fatalf("no response with version %d", version)
	}
	return resp.Nonce
}

// remembered returns the number of resources that the session remembers besides those sent last.
func (u *unanswering) remembered() int {
	of := make(map[*xds.Resource]struct{})
	sub := u.s.types[u.url]
	for _, f := range sub.inFlight {
		for _, r := range f.resources {
			of[r] = struct{}{}
		}
	}
	for _, h := range sub.sent.all() {
		if h.rare.unconfirmed != nil {
			of[h.rare.unconfirmed] = struct{}{}
		}
		delete(of, h.last)
	}
	return len(of)
}

func both(t *testing.T, f func(t *testing.T, form xds.Form)) {
	for _, form := range []xds.Form{xds.SotW, xds.Delta} {
		t.Run(form.String(), func(t *testing.T) { f(t, form) })
	}
}

// A client that never answers costs little more memory than one that does.
func TestSupersededResourcesAreNotRememberedForEver(t *testing.T) {
	both(t, func(t *testing.T, form xds.Form) {
		u := newUnanswering(t, form, xds.ClusterType)
		for version := range 100 {
			u.push(version, "a", "b")
			// maxSuperseded, the resources that the last response superseded, and for one name the
			// version that the client may have.
			if n := u.remembered(); n > 4+2+2 {
				t.Fatalf("%d contents are remembered after %d responses", n, version+1)
			}
		}
	})
}

// An Envoy may take long to answer its first response.
func TestALateAnswerConcernsTheResourcesThatAreNotSuperseded(t *testing.T) {
	both(t, func(t *testing.T, form xds.Form) {
		u := newUnanswering(t, form, xds.ClusterType)
		first := u.push(0, "a", "stands")
		var last string
		for version := range 20 {
			last = u.push(1+version, "a")
		}
		nonce := first
		if form == xds.SotW {
			nonce = last // it answers the newest, which contains everything
		}
		v := u.s.Request(&Request{Type: u.url, Nonce: nonce}).Answer
		if v == nil || !slices.ContainsFunc(v.Acked, func(r *xds.Resource) bool { return r.Name == "stands" }) {
			t.Errorf("the answer is %+v", v)
		}
		if form == xds.Delta && slices.ContainsFunc(v.Acked, func(r *xds.Resource) bool { return r.Name == "a" }) {
			t.Error("what is not remembered was accepted")
		}
	})
}

// If only a part of a response is remembered, it is unknown which resource is to blame.
func TestTheRememberedPartOfANACKedResponseIsSuspected(t *testing.T) {
	u := newUnanswering(t, xds.Delta, xds.ClusterType)
	first := u.push(0, "a", "stands")
	for version := range 20 {
		u.push(1+version, "a")
	}
	v := u.s.Request(&Request{Type: u.url, Nonce: first, NACK: true, Error: "no"}).Answer
	if v == nil || v.Nacked != nil || len(v.Suspects) != 1 || v.Suspects[0].Name != "stands" {
		t.Errorf("the answer is %+v", v)
	}
}

// There is one for each resource of each client.
func TestAClientCopyIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(clientCopy{}); size > 48 {
		t.Errorf("%d bytes", size)
	}
}
