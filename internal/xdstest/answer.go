package xdstest

import (
	"maps"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// answer sends what is due to a subscription, if anything.
func (cp *ControlPlane) answer(st *stream, typeURL string) {
	sub := st.types[typeURL]
	if sub == nil || cp.silent || cp.held[typeURL] {
		return
	}
	due := cp.due(sub, typeURL)
	if len(due.put) == 0 && len(due.removed) == 0 && !sub.owed {
		return
	}
	nonce := cp.nextNonce()
	if st.protocol == Delta {
		cp.send(st, typeURL, nonce, cp.deltaResponse(typeURL, nonce, due))
	} else if response := cp.sotwResponse(sub, typeURL, nonce, due); response != nil {
		cp.send(st, typeURL, nonce, response)
	}
	for _, e := range due.put {
		sub.sent[e.source.GetName()] = e.version
	}
	for _, name := range due.removed {
		delete(sub.sent, name)
	}
	clear(sub.asked)
	sub.owed = false
}

// due is the difference between what a client holds and what it should.
type due struct {
	// put lists what it lacks, all what it should hold; both in order of name.
	put, all []*entry
	removed  []string
}

func (cp *ControlPlane) due(sub *subscription, typeURL string) due {
	var d due
	state := cp.state[typeURL]
	for _, name := range slices.Sorted(maps.Keys(state)) {
		e := state[name]
		asked := e.known(func(name string) bool { return sub.asked[name] })
		if !sub.wants(e) && !asked {
			continue
		}
		d.all = append(d.all, e)
		if version, ok := sub.sent[name]; !ok || version != e.version || asked {
			d.put = append(d.put, e)
		}
	}
	gone := make(map[string]bool)
	for name := range sub.sent {
		gone[name] = state[name] == nil
	}
	for name := range sub.asked {
		gone[name] = !slices.ContainsFunc(d.all, func(e *entry) bool {
			return e.known(func(known string) bool { return known == name })
		})
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		if gone[name] {
			d.removed = append(d.removed, name)
		}
	}
	if cp.config.ResendAll && len(d.put) > 0 {
		d.put = d.all
	}
	return d
}

func (cp *ControlPlane) deltaResponse(typeURL, nonce string, d due) *discoveryv3.DeltaDiscoveryResponse {
	response := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: typeURL, Nonce: nonce, SystemVersionInfo: cp.typeVersion(typeURL),
		RemovedResources: d.removed, ControlPlane: cp.identity(),
	}
	for _, e := range d.put {
		w := proto.CloneOf(e.source)
		if w.Version = e.version; cp.config.EmptyVersions {
			w.Version = ""
		}
		response.Resources = append(response.Resources, w)
	}
	return response
}

// sotwResponse returns nil where SotW has no way to say what is due: that a
// resource of a type other than LDS, CDS and SRDS is gone (protocol.md 1.13).
func (cp *ControlPlane) sotwResponse(sub *subscription, typeURL, nonce string, d due) *discoveryv3.DiscoveryResponse {
	entries := d.put
	if xds.FullState(typeURL) || sub.owed {
		entries = d.all
	} else if len(entries) == 0 {
		return nil
	}
	response := &discoveryv3.DiscoveryResponse{
		TypeUrl: typeURL, Nonce: nonce, VersionInfo: cp.typeVersion(typeURL), ControlPlane: cp.identity(),
	}
	for _, e := range entries {
		w := e.source
		if bare, err := xds.ScanName(w.GetResource().GetValue()); err != nil || bare != w.GetName() ||
			w.Ttl != nil || w.CacheControl != nil || w.Metadata != nil || len(w.Aliases) > 0 {
			w = proto.CloneOf(w)
			w.Version = e.version
			response.Resources = append(response.Resources, Pack(w))
		} else {
			response.Resources = append(response.Resources, w.GetResource())
		}
	}
	return response
}

// typeVersion is the version of all resources of a type; never "".
func (cp *ControlPlane) typeVersion(typeURL string) string {
	return strconv.Itoa(cp.typeIssued[typeURL])
}

func (cp *ControlPlane) identity() *corev3.ControlPlane {
	if cp.config.Identifier == "" {
		return nil
	}
	return &corev3.ControlPlane{Identifier: cp.config.Identifier}
}

// send queues a response and remembers its nonce.
func (cp *ControlPlane) send(st *stream, typeURL, nonce string, response proto.Message) {
	st.out.put(outgoing{msg: response})
	st.open[[2]string{typeURL, nonce}] = true
	if sub := st.types[typeURL]; sub != nil {
		sub.nonce = nonce
	}
	a := Answer{Stream: st.number, Protocol: st.protocol, Type: typeURL, Nonce: nonce}
	switch r := response.(type) {
	case *discoveryv3.DiscoveryResponse:
		a.Version = r.GetVersionInfo()
		for _, body := range r.GetResources() {
			a.Names = append(a.Names, nameOf(body))
		}
	case *discoveryv3.DeltaDiscoveryResponse:
		a.Version = r.GetSystemVersionInfo()
		a.Removed = r.GetRemovedResources()
		for _, w := range r.GetResources() {
			a.Names = append(a.Names, w.GetName())
		}
	}
	cp.answers = append(cp.answers, a)
}
