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

// answer sends the pending changes of a subscription, if there are any.
func (cp *ControlPlane) answer(st *stream, typeURL string) {
	sub := st.types[typeURL]
	if sub == nil || cp.silent || cp.onHold[typeURL] {
		return
	}
	due := cp.due(sub, typeURL)
	if len(due.changed) == 0 && len(due.removed) == 0 && !sub.mustAnswer {
		return
	}
	nonce := cp.nextNonce()
	if st.protocol == Delta {
		cp.send(st, typeURL, nonce, cp.deltaResponse(typeURL, nonce, due))
	} else if response := cp.sotwResponse(sub, typeURL, nonce, due); response != nil {
		cp.send(st, typeURL, nonce, response)
	}
	for _, e := range due.changed {
		sub.sent[e.resource.GetName()] = e.version
	}
	for _, name := range due.removed {
		delete(sub.sent, name)
	}
	clear(sub.requested)
	sub.mustAnswer = false
}

// pendingChanges is the difference between the resources that a client has and those that it should
// have.
type pendingChanges struct {
	// changed are the resources to send, and all the resources that the client should have, both sorted
	// by name.
	changed, all []*entry
	removed      []string
}

func (cp *ControlPlane) due(sub *subscription, typeURL string) pendingChanges {
	var d pendingChanges
	state := cp.state[typeURL]
	for _, name := range slices.Sorted(maps.Keys(state)) {
		e := state[name]
		asked := e.hasName(func(name string) bool { return sub.requested[name] })
		if !sub.wants(e) && !asked {
			continue
		}
		d.all = append(d.all, e)
		if version, ok := sub.sent[name]; !ok || version != e.version || asked {
			d.changed = append(d.changed, e)
		}
	}
	removed := make(map[string]bool)
	for name := range sub.sent {
		removed[name] = state[name] == nil
	}
	for name := range sub.requested {
		removed[name] = !slices.ContainsFunc(d.all, func(e *entry) bool {
			return e.hasName(func(known string) bool { return known == name })
		})
	}
	for _, name := range slices.Sorted(maps.Keys(removed)) {
		if removed[name] {
			d.removed = append(d.removed, name)
		}
	}
	if cp.config.ResendAll && len(d.changed) > 0 {
		d.changed = d.all
	}
	return d
}

func (cp *ControlPlane) deltaResponse(typeURL, nonce string, d pendingChanges) *discoveryv3.DeltaDiscoveryResponse {
	response := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: typeURL, Nonce: nonce, SystemVersionInfo: cp.typeVersion(typeURL),
		RemovedResources: d.removed, ControlPlane: cp.identity(),
	}
	for _, e := range d.changed {
		w := proto.CloneOf(e.resource)
		if w.Version = e.version; cp.config.EmptyVersions {
			w.Version = ""
		}
		response.Resources = append(response.Resources, w)
	}
	return response
}

// sotwResponse returns nil if SotW cannot express the change: the removal of a resource of a type other
// than LDS, CDS and SRDS (protocol.md 1.13).
func (cp *ControlPlane) sotwResponse(sub *subscription, typeURL, nonce string, d pendingChanges) *discoveryv3.DiscoveryResponse {
	entries := d.changed
	if xds.FullState(typeURL) || sub.mustAnswer {
		entries = d.all
	} else if len(entries) == 0 {
		return nil
	}
	response := &discoveryv3.DiscoveryResponse{
		TypeUrl: typeURL, Nonce: nonce, VersionInfo: cp.typeVersion(typeURL), ControlPlane: cp.identity(),
	}
	for _, e := range entries {
		w := e.resource
		if bare, err := xds.ScanName(w.GetResource()); err != nil || bare != w.GetName() ||
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

// typeVersion returns the version of all resources of a type; never "".
func (cp *ControlPlane) typeVersion(typeURL string) string {
	return strconv.Itoa(cp.typeVersions[typeURL])
}

func (cp *ControlPlane) identity() *corev3.ControlPlane {
	if cp.config.Identifier == "" {
		return nil
	}
	return &corev3.ControlPlane{Identifier: cp.config.Identifier}
}

// send queues a response and records its nonce.
func (cp *ControlPlane) send(st *stream, typeURL, nonce string, response proto.Message) {
	st.out.put(outgoing{msg: response})
	st.unanswered[[2]string{typeURL, nonce}] = true
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
