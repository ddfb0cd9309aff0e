package xdstest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// view is a client's subscription to one type, and its resources.
type view struct {
	typeURL string
	// wildcard is set if everything is subscribed to, and star if "*" was named.
	wildcard, star bool
	names          map[string]bool
	// emptied is set if the last name was removed while there was no stream, after which Envoy sends an
	// empty first request (protocol.md V8).
	emptied bool
	// announced is set if a request for the type was sent on the current stream.
	announced bool

	resources map[string]*discoveryv3.Resource
	// versions are Delta's ACKed versions; a resource from a NACKed response has none (protocol.md V6).
	versions map[string]string
	// version and nonce are SotW's: the version that was ACKed last, and the last received nonce.
	version, nonce string
}

func newView(typeURL string) *view {
	return &view{
		typeURL:   typeURL,
		names:     make(map[string]bool),
		resources: make(map[string]*discoveryv3.Resource),
		versions:  make(map[string]string),
	}
}

func (v *view) subscribe(names []string) {
	if len(names) == 0 && xds.Info(v.typeURL).LegacyWildcard && len(v.names) == 0 {
		v.wildcard = true
	}
	for _, name := range names {
		if name == xds.Wildcard {
			v.wildcard, v.star = true, true
		} else {
			v.names[name] = true
		}
	}
	v.emptied = false
}

func (v *view) unsubscribe(names []string, offline bool) {
	for _, name := range names {
		if name == xds.Wildcard {
			v.wildcard, v.star = false, false
		}
		delete(v.names, name)
	}
	if v.wildcard {
		return
	}
	v.emptied = offline && len(v.names) == 0
	for name, r := range v.resources {
		if !v.names[name] && !slices.ContainsFunc(r.GetAliases(), func(a string) bool { return v.names[a] }) {
			delete(v.resources, name)
			delete(v.versions, name)
		}
	}
}

func (v *view) reconnected() { v.nonce, v.announced = "", false }

// request returns a SotW request with the current names, version and nonce.
func (v *view) request(typeURL string) *discoveryv3.DiscoveryRequest {
	names := slices.Sorted(maps.Keys(v.names))
	if v.star {
		names = slices.Insert(names, 0, xds.Wildcard)
	}
	return &discoveryv3.DiscoveryRequest{
		TypeUrl: typeURL, VersionInfo: v.version, ResponseNonce: v.nonce, ResourceNames: names,
	}
}

// firstDelta returns the first Delta request of a stream, nil if Envoy sends none: for a type without a
// subscription.
func (v *view) firstDelta(typeURL string) *discoveryv3.DeltaDiscoveryRequest {
	if !v.wildcard && len(v.names) == 0 && !v.emptied {
		return nil
	}
	v.announced = true
	v.emptied = false
	sub := slices.Sorted(maps.Keys(v.names))
	if v.star || v.wildcard && len(sub) > 0 {
		sub = slices.Insert(sub, 0, xds.Wildcard) // protocol.md 2.6
	}
	return &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: typeURL, ResourceNamesSubscribe: sub, InitialResourceVersions: maps.Clone(v.versions),
	}
}

// nackReasons are the problems of a response by resource name. The name "" concerns the whole response.
type nackReasons map[string]error

func (r nackReasons) err() error {
	if len(r) == 0 {
		return nil
	}
	texts := make([]string, 0, len(r))
	for _, name := range slices.Sorted(maps.Keys(r)) {
		texts = append(texts, strings.TrimPrefix(name+": "+r[name].Error(), ": "))
	}
	return errors.New(strings.Join(texts, "; "))
}

// check returns the problems that an Envoy would find in a response, and those from reject.
func (v *view) check(p Protocol, r Received, reject func(string, *discoveryv3.Resource) error) nackReasons {
	bad := make(nackReasons)
	seen := make(map[string]bool)
	for _, w := range r.Resources {
		name := w.GetName()
		switch {
		case name == "" && !xds.Nameless(r.Type):
			bad[""] = errors.New("resource without a name")
		case p == Delta && seen[name]:
			bad[""] = fmt.Errorf("duplicate name %s found among added/updated resources", name)
		case v.bodyless(p, w):
			continue
		case w.GetResource().GetTypeUrl() != r.Type:
			bad[""] = fmt.Errorf("type URL %s embedded in an individual Any does not match the message-wide type URL %s in DeltaDiscoveryResponse", w.GetResource().GetTypeUrl(), r.Type)
		case reject != nil:
			if err := reject(r.Type, w); err != nil {
				bad[name] = err
			}
		}
		seen[name] = true
	}
	for _, name := range r.Removed {
		if seen[name] {
			bad[""] = fmt.Errorf("duplicate name %s found in the union of added+removed resources", name)
		}
		seen[name] = true
	}
	return bad
}

// bodyless reports whether a resource may have no body: always in SotW, as a heartbeat in Delta, and in
// VHDS.
func (v *view) bodyless(p Protocol, w *discoveryv3.Resource) bool {
	return w.GetResource() == nil && (p == SotW || v.heartbeat(w) || v.typeURL == xds.VirtualHostType)
}

// heartbeat reports whether a Delta resource only refreshes the TTL (protocol.md 6.5).
func (v *view) heartbeat(w *discoveryv3.Resource) bool {
	version, ok := v.versions[w.GetName()]
	return w.GetResource() == nil && ok && version == w.GetVersion()
}

// apply applies a response as an Envoy does that NACKs a part of it: nothing if the whole response is
// invalid; all valid resources of LDS and CDS; of other types the resources before the first invalid
// one (protocol.md 3.9). Versions only advance without a NACK (V6).
func (v *view) apply(p Protocol, r Received, bad nackReasons) {
	if bad[""] != nil {
		return
	}
	all := r.Type == xds.ClusterType || r.Type == xds.ListenerType
	named := make(map[string]bool)
	stopped := false
	for _, w := range r.Resources {
		if p == SotW && w.GetResource() == nil {
			continue // Envoy treats it as absent: a heartbeat deletes (V4)
		}
		named[w.GetName()] = true
		if bad[w.GetName()] != nil {
			stopped = stopped || !all
			continue
		}
		if stopped || v.heartbeat(w) {
			continue
		}
		v.resources[w.GetName()] = w
		if len(bad) == 0 {
			v.versions[w.GetName()] = w.GetVersion()
		}
	}
	if len(bad) == 0 {
		v.version = r.Version
	}
	if stopped {
		return
	}
	removed := r.Removed
	if p == SotW && xds.FullState(r.Type) {
		for name := range v.resources {
			if !named[name] {
				removed = append(removed, name)
			}
		}
	}
	for _, name := range removed {
		delete(v.resources, name)
		if len(bad) == 0 {
			delete(v.versions, name)
		}
	}
}

// unwrap makes an entry of a SotW response what it would be in Delta; the name
// is "" where there is none.
func unwrap(body *anypb.Any) *discoveryv3.Resource {
	if body.GetTypeUrl() != xds.WrapperType {
		name := ""
		if !xds.Nameless(body.GetTypeUrl()) {
			name, _ = xds.ScanName(body)
		}
		return &discoveryv3.Resource{Name: name, Resource: body}
	}
	var w discoveryv3.Resource
	if err := proto.Unmarshal(body.GetValue(), &w); err != nil {
		return &discoveryv3.Resource{Resource: body}
	}
	if w.Name == "" {
		w.Name, _ = xds.ScanName(w.GetResource())
	}
	return &w
}

func nameOf(body *anypb.Any) string { return unwrap(body).GetName() }
