package session

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// parents is a client of listeners, secrets and extension configurations that has acknowledged everything, and its state.
type parents struct {
	*testing.T
	state  *fakeState
	s      *Session
	form   xds.Form
	looked int
}

// What the client was sent is sent again, once, when it is repeated; what it was not sent is not.
func TestWhatIsRepeatedIsSentAgain(t *testing.T) {
	for _, form := range []xds.Form{xds.SotW, xds.Delta} {
		t.Run(form.String(), func(t *testing.T) {
			p := newParents(t, form, 1)
			p.s.Repeated(xds.SecretType, []string{"of-l0", "of-nobody", "unknown"})
			p.s.Repeated(xds.EndpointType, []string{"x"}) // to which it does not subscribe
			if got := p.answer(); !slices.Equal(got, []string{"SDS of-l0"}) {
				t.Errorf("sent %v", got)
			}
			if got := p.answer(); len(got) > 0 {
				t.Errorf("sent again: %v", got)
			}
		})
	}
}

func newParents(t *testing.T, form xds.Form, listeners int) *parents {
	p := &parents{T: t, state: newFakeState(), form: form}
	p.s = New(Config{Form: form, References: func(r *xds.Resource) (refers []xds.Key) {
		p.looked++
		if r.Type == xds.ListenerType {
			return []xds.Key{{Type: xds.ExtensionConfigType, Name: "filter"}, {Type: xds.SecretType, Name: "of-" + r.Name}, {Type: xds.RouteType, Name: "r"}}
		}
		return []xds.Key{{Type: xds.SecretType, Name: "of-the-filter"}}
	}})
	for _, typeURL := range []string{xds.ListenerType, xds.SecretType, xds.ExtensionConfigType, xds.RouteType} {
		p.state.items[typeURL] = make(map[string]xds.Item)
	}
	p.state.knowledge[xds.ListenerType] = xds.Complete
	for i := range listeners {
		p.put(xds.ListenerType, fmt.Sprint("l", i), "1")
	}
	for typeURL, names := range map[string][]string{xds.SecretType: {"of-l0", "of-l1", "of-the-filter"}, xds.ExtensionConfigType: {"filter"}, xds.RouteType: {"r"}} {
		for _, name := range names {
			p.put(typeURL, name, "1")
		}
	}
	p.request(xds.ListenerType)
	p.answer()
	p.request(xds.SecretType, "of-l0", "of-l1", "of-the-filter", "of-nobody")
	p.request(xds.ExtensionConfigType, "filter")
	p.request(xds.RouteType, "r")
	p.answer()
	return p
}

func (p *parents) put(typeURL, name, version string) {
	p.state.items[typeURL][name] = xds.Item{Current: &xds.Resource{Type: typeURL, Name: name, Version: version, Body: &anypb.Any{TypeUrl: typeURL}}}
	p.state.revision++
	p.s.Changed(typeURL, []string{name}, false)
}

func (p *parents) request(typeURL string, names ...string) {
	req := &Request{Type: typeURL, Names: names}
	if p.form == xds.Delta {
		req.Names, req.Subscribe = nil, names
	}
	p.s.Request(req)
}

// answer ACKs everything that is sent, and returns it without the listeners.
func (p *parents) answer() (sent []string) {
	names := map[string][]string{xds.SecretType: {"of-l0", "of-l1", "of-the-filter", "of-nobody"}, xds.ExtensionConfigType: {"filter"}, xds.RouteType: {"r"}}
	for {
		resp, _ := p.s.Next(p.state, time.Time{})
		if resp == nil {
			slices.Sort(sent)
			return sent
		}
		for _, r := range resp.Resources {
			if r.Type != xds.ListenerType {
				sent = append(sent, xds.Short(r.Type)+" "+r.Name)
			}
		}
		req := &Request{Type: resp.Type, Nonce: resp.Nonce}
		if p.form == xds.SotW {
			req.Version, req.Names = resp.Version, names[resp.Type]
		}
		p.s.Request(req)
	}
}

// protocol.md V16: what a resource refers to is sent again when that has changed, and what that refers to, but nothing else; at the start of a
// client nothing is.
func TestWhatAChangedResourceRefersToIsSentAgain(t *testing.T) {
	both(t, func(t *testing.T, form xds.Form) {
		p := newParents(t, form, 3)
		if p.looked > 1 { // the filter came after the secrets
			t.Errorf("references were looked for %d times before the client had anything", p.looked)
		}
		for _, tc := range []struct {
			what string
			do   func()
			want []string
		}{
			{"a listener changes", func() { p.put(xds.ListenerType, "l0", "2") }, []string{"ECDS filter", "SDS of-l0", "SDS of-the-filter"}},
			{"a listener is new", func() { p.put(xds.ListenerType, "l1", "2") }, []string{"ECDS filter", "SDS of-l1", "SDS of-the-filter"}},
			{"another listener changes, of whose secret nothing is known", func() { p.put(xds.ListenerType, "nobody", "1") }, []string{"ECDS filter", "SDS of-the-filter"}},
			{"the filter changes", func() { p.put(xds.ExtensionConfigType, "filter", "2") }, []string{"ECDS filter", "SDS of-the-filter"}},
			{"a secret changes", func() { p.put(xds.SecretType, "of-l0", "2") }, []string{"SDS of-l0"}},
			{"a listener is repeated", func() { p.put(xds.ListenerType, "l0", "2") }, nil},
		} {
			if tc.do(); true {
				if got := p.answer(); !slices.Equal(got, tc.want) {
					t.Errorf("when %s, %q is sent, want %q", tc.what, got, tc.want)
				}
			}
		}
	})
}

// When much changes at once, everything is sent again, without a look at each.
func TestWhenMuchChangesEverythingIsSentAgain(t *testing.T) {
	both(t, func(t *testing.T, form xds.Form) {
		p := newParents(t, form, 2*maxParents)
		for i := range maxParents + 1 {
			p.put(xds.ListenerType, fmt.Sprint("l", i), "2")
		}
		want := []string{"ECDS filter", "SDS of-l0", "SDS of-l1", "SDS of-the-filter"}
		if got := p.answer(); !slices.Equal(got, want) || p.looked > 1 { // one for the filter
			t.Errorf("%q is sent, want %q, and references were looked for %d times", got, want, p.looked)
		}
	})
}
