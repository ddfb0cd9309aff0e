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

// view is what a client subscribes to and holds of one type.
type view struct {
	typeURL string
	// wildcard says that everything is wanted, star that "*" was named for it.
	wildcard, star bool
	names          map[string]bool
	// emptied says that the last name went while there was no stream, which
	// Envoy shows with an empty first request (protocol.md V8).
	emptied bool
	// said says that the stream knows of the type.
	said bool

	held map[string]*discoveryv3.Resource
	// versions are Delta's of what was accepted; a resource that came with a
	// NACKed answer is held without one (protocol.md V6).
	versions map[string]string
	// version and nonce are SotW's: the last accepted, and the last received.
	version, nonce string
}

func newView(typeURL string) *view {
	return &view{
		typeURL:  typeURL,
		names:    make(map[string]bool),
		held:     make(map[string]*discoveryv3.Resource),
		versions: make(map[string]string),
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
	for name, r := range v.held {
		if !v.names[name] && !slices.ContainsFunc(r.GetAliases(), func(a string) bool { return v.names[a] }) {
			delete(v.held, name)
			delete(v.versions, name)
		}
	}
}

func (v *view) reconnected() { v.nonce, v.said = "", false }

// request is a SotW request: names, version and nonce as they are now.
func (v *view) request(typeURL string) *discoveryv3.DiscoveryRequest {
	names := slices.Sorted(maps.Keys(v.names))
	if v.star {
		names = slices.Insert(names, 0, xds.Wildcard)
	}
	return &discoveryv3.DiscoveryRequest{
		TypeUrl: typeURL, VersionInfo: v.version, ResponseNonce: v.nonce, ResourceNames: names,
	}
}

// firstDelta is the first Delta request of a stream, nil where Envoy sends none:
// for a type of which nothing is wanted any more.
func (v *view) firstDelta(typeURL string) *discoveryv3.DeltaDiscoveryRequest {
	if !v.wildcard && len(v.names) == 0 && !v.emptied {
		return nil
	}
	v.said = true
	v.emptied = false
	sub := slices.Sorted(maps.Keys(v.names))
	if v.star || v.wildcard && len(sub) > 0 {
		sub = slices.Insert(sub, 0, xds.Wildcard) // protocol.md 2.6
	}
	return &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: typeURL, ResourceNamesSubscribe: sub, InitialResourceVersions: maps.Clone(v.versions),
	}
}

// rejected is what is wrong with an answer: resource name → why. The name "" is
// about the whole of it.
type rejected map[string]error

func (r rejected) err() error {
	if len(r) == 0 {
		return nil
	}
	texts := make([]string, 0, len(r))
	for _, name := range slices.Sorted(maps.Keys(r)) {
		texts = append(texts, strings.TrimPrefix(name+": "+r[name].Error(), ": "))
	}
	return errors.New(strings.Join(texts, "; "))
}

// judge says what an Envoy would find wrong with an answer, and reject besides.
func (v *view) judge(p Protocol, r Received, reject func(string, *discoveryv3.Resource) error) rejected {
	bad := make(rejected)
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

// bodyless reports whether a resource may come without a body: always in SotW,
// as a heartbeat in Delta, and in VHDS.
func (v *view) bodyless(p Protocol, w *discoveryv3.Resource) bool {
	return w.GetResource() == nil && (p == SotW || v.heartbeat(w) || v.typeURL == xds.VirtualHostType)
}

// heartbeat reports whether a Delta resource refreshes what is held
// (protocol.md 6.5).
func (v *view) heartbeat(w *discoveryv3.Resource) bool {
	version, ok := v.versions[w.GetName()]
	return w.GetResource() == nil && ok && version == w.GetVersion()
}

// apply takes in what an Envoy would of an answer of which some is bad: nothing
// if it is bad as a whole; of LDS and CDS all that is good; of other types what
// comes before the first bad one (protocol.md 3.9). Versions advance only when
// nothing is bad (V6).
func (v *view) apply(p Protocol, r Received, bad rejected) {
	if bad[""] != nil {
		return
	}
	all := r.Type == xds.ClusterType || r.Type == xds.ListenerType
	named := make(map[string]bool)
	stopped := false
	for _, w := range r.Resources {
		if p == SotW && w.GetResource() == nil {
			continue // as if it were absent: a heartbeat deletes (V4)
		}
		named[w.GetName()] = true
		if bad[w.GetName()] != nil {
			stopped = stopped || !all
			continue
		}
		if stopped || v.heartbeat(w) {
			continue
		}
		v.held[w.GetName()] = w
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
	gone := r.Removed
	if p == SotW && xds.FullState(r.Type) {
		for name := range v.held {
			if !named[name] {
				gone = append(gone, name)
			}
		}
	}
	for _, name := range gone {
		delete(v.held, name)
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
			name, _ = xds.ScanName(body.GetValue())
		}
		return &discoveryv3.Resource{Name: name, Resource: body}
	}
	var w discoveryv3.Resource
	if err := proto.Unmarshal(body.GetValue(), &w); err != nil {
		return &discoveryv3.Resource{Resource: body}
	}
	if w.Name == "" {
		w.Name, _ = xds.ScanName(w.GetResource().GetValue())
	}
	return &w
}

func nameOf(body *anypb.Any) string { return unwrap(body).GetName() }
