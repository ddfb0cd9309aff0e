// Package envoyfilter applies the patches of EnvoyFilters to Envoy's resources: pure functions from a
// message and patches to a message. It follows istiod in what a patch selects and in how it is merged.
//
// It promises that a patch harms nothing but itself: a patch that cannot be applied to a resource, or
// with which the resource would break a rule of Envoy's API (check.go), is left out of this resource as a
// whole and returned as a Failure, and all other patches are applied. It never changes the messages that
// it is given, nor the patches. It does not know which EnvoyFilters concern a proxy (push.Snapshot does),
// and does not find everything that an Envoy rejects: an Envoy knows more rules than its API has.
//
// All functions may be called by several goroutines at once.
package envoyfilter

import (
	"fmt"
	"regexp"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Names for what the API of EnvoyFilter has.
type (
	// ApplyTo is the kind of object that a patch changes.
	ApplyTo = networking.EnvoyFilter_ApplyTo
	// Operation is what a patch does.
	Operation = networking.EnvoyFilter_Patch_Operation
	// Context says whose objects a patch changes: of a gateway, or of one direction of a sidecar.
	Context = networking.EnvoyFilter_PatchContext
)

// The operations, by shorter names.
const (
	opMerge        = networking.EnvoyFilter_Patch_MERGE
	opMergeReplace = networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	opAdd          = networking.EnvoyFilter_Patch_ADD
	opRemove       = networking.EnvoyFilter_Patch_REMOVE
	opBefore       = networking.EnvoyFilter_Patch_INSERT_BEFORE
	opAfter        = networking.EnvoyFilter_Patch_INSERT_AFTER
	opFirst        = networking.EnvoyFilter_Patch_INSERT_FIRST
	opReplace      = networking.EnvoyFilter_Patch_REPLACE
)

// MaxProxyVersion is the length of the longest expression for proxyVersion, in bytes, as in Istio.
const MaxProxyVersion = 1024

// Patch is one of the configPatches of an EnvoyFilter.
type Patch struct {
	// Origin is the document, Index the place of the patch in its configPatches.
	Origin string
	Index  int

	ApplyTo   ApplyTo
	operation Operation
	value     proto.Message // nil for a REMOVE without one
	match     *networking.EnvoyFilter_EnvoyConfigObjectMatch
	version   *regexp.Regexp // nil for any version
}

// String returns the place of the patch: "EnvoyFilter default/lua spec.configPatches[0]".
func (p *Patch) String() string {
	return p.Origin + " spec.configPatches[" + strconv.Itoa(p.Index) + "]"
}

// Failure says that a patch is left out of a resource, or that a resource that it adds is.
type Failure struct {
	Patch *Patch
	// Resource is the name of the resource.
	Resource string
	Reason   string
}

// String returns the failure as a sentence.
func (f Failure) String() string {
	return fmt.Sprintf("%s is left out of %s: %s", f.Patch, f.Resource, f.Reason)
}

// newValue returns an empty message of the objects that a patch changes; nil if there is none.
func newValue(to ApplyTo) proto.Message {
	switch to {
	case networking.EnvoyFilter_LISTENER:
		return &listenerv3.Listener{}
	case networking.EnvoyFilter_LISTENER_FILTER:
		return &listenerv3.ListenerFilter{}
	case networking.EnvoyFilter_FILTER_CHAIN:
		return &listenerv3.FilterChain{}
	case networking.EnvoyFilter_NETWORK_FILTER:
		return &listenerv3.Filter{}
	case networking.EnvoyFilter_HTTP_FILTER:
		return &managerv3.HttpFilter{}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION:
		return &routev3.RouteConfiguration{}
	case networking.EnvoyFilter_VIRTUAL_HOST:
		return &routev3.VirtualHost{}
	case networking.EnvoyFilter_HTTP_ROUTE:
		return &routev3.Route{}
	case networking.EnvoyFilter_CLUSTER:
		return &clusterv3.Cluster{}
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		return &corev3.TypedExtensionConfig{}
	case networking.EnvoyFilter_BOOTSTRAP:
		return &bootstrapv3.Bootstrap{}
	}
	return nil
}

// operations are those that have an effect on the objects of a kind. The inserting ones are an ADD for
// what is not in an order.
var operations = map[ApplyTo][]Operation{
	networking.EnvoyFilter_LISTENER:            {opAdd, opRemove, opMerge, opMergeReplace},
	networking.EnvoyFilter_FILTER_CHAIN:        {opAdd, opRemove, opMerge, opMergeReplace},
	networking.EnvoyFilter_LISTENER_FILTER:     {opAdd, opRemove, opMerge, opBefore, opAfter, opFirst, opReplace},
	networking.EnvoyFilter_NETWORK_FILTER:      {opAdd, opRemove, opMerge, opBefore, opAfter, opFirst, opReplace},
	networking.EnvoyFilter_HTTP_FILTER:         {opAdd, opRemove, opMerge, opBefore, opAfter, opFirst, opReplace},
	networking.EnvoyFilter_ROUTE_CONFIGURATION: {opMerge, opMergeReplace},
	networking.EnvoyFilter_VIRTUAL_HOST:        {opAdd, opRemove, opMerge, opMergeReplace, opReplace},
	networking.EnvoyFilter_HTTP_ROUTE:          {opAdd, opRemove, opMerge, opMergeReplace, opBefore, opAfter, opFirst},
	networking.EnvoyFilter_CLUSTER:             {opAdd, opRemove, opMerge, opMergeReplace},
	networking.EnvoyFilter_EXTENSION_CONFIG:    {opAdd},
	networking.EnvoyFilter_BOOTSTRAP:           {opMerge},
}

// effective returns the operation that a patch has in effect.
func effective(to ApplyTo, op Operation) Operation {
	switch op {
	case opBefore, opAfter, opFirst:
		switch to {
		case networking.EnvoyFilter_LISTENER_FILTER, networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER, networking.EnvoyFilter_HTTP_ROUTE:
		default:
			return opAdd
		}
	}
	return op
}

// Compile reads the patches of an EnvoyFilter, which origin names. Patches with an error, which
// validation reports (see Check), and those without an effect are left out.
func Compile(origin string, spec *networking.EnvoyFilter) (patches []*Patch) {
	for i, in := range spec.GetConfigPatches() {
		p := &Patch{Origin: origin, Index: i, ApplyTo: in.GetApplyTo(), match: in.GetMatch()}
		p.operation = effective(p.ApplyTo, in.GetPatch().GetOperation())
		if !hasEffect(p.ApplyTo, p.operation) || p.match.GetContext() == networking.EnvoyFilter_WAYPOINT {
			continue
		}
		if in.GetPatch().GetValue() != nil {
			value, problems := parseValue(p.ApplyTo, in.GetPatch().GetOperation(), in.GetPatch().GetValue())
			if len(problems) > 0 {
				continue
			}
			p.value = value
		} else if p.operation != opRemove {
			continue
		}
		if text := p.match.GetProxy().GetProxyVersion(); text != "" {
			re, err := regexp.Compile(text)
			if err != nil || len(text) > MaxProxyVersion {
				continue
			}
			p.version = re
		}
		patches = append(patches, p)
	}
	return patches
}

// hasEffect reports whether an operation has an effect on the objects of a kind.
func hasEffect(to ApplyTo, op Operation) bool {
	for _, o := range operations[to] {
		if o == effective(to, op) {
			return true
		}
	}
	return false
}

// Proxy is what patches read of a proxy.
type Proxy interface {
	// Version returns the version of Istio's proxy; "" for none.
	Version() string
	// Metadata returns a text in the metadata of its Node; ok is false for none.
	Metadata(key string) (text string, ok bool)
}

// Matches reports whether a patch is for a proxy.
func (p *Patch) Matches(proxy Proxy) bool {
	if p.version != nil {
		if version := proxy.Version(); version == "" || !p.version.MatchString(version) {
			return false
		}
	}
	for _, key := range sortedKeys(p.match.GetProxy().GetMetadata()) {
		if text, ok := proxy.Metadata(key); !ok || text != p.match.GetProxy().GetMetadata()[key] {
			return false
		}
	}
	return true
}

// Set has the patches of a proxy in the order in which they are applied. A nil Set has none.
type Set struct{ by map[ApplyTo][]*Patch }

// NewSet returns the Set of patches in their order; nil for none.
func NewSet(patches []*Patch) *Set {
	if len(patches) == 0 {
		return nil
	}
	s := &Set{by: make(map[ApplyTo][]*Patch)}
	for _, p := range patches {
		s.by[p.ApplyTo] = append(s.by[p.ApplyTo], p)
	}
	return s
}

// Has reports whether there are patches of some kinds.
func (s *Set) Has(kinds ...ApplyTo) bool {
	for _, to := range kinds {
		if s != nil && len(s.by[to]) > 0 {
			return true
		}
	}
	return false
}

// in returns the patches of some kinds for a context, kind by kind.
func (s *Set) in(context Context, kinds ...ApplyTo) (patches []*Patch) {
	if s == nil {
		return nil
	}
	for _, to := range kinds {
		for _, p := range s.by[to] {
			if p.isIn(context) {
				patches = append(patches, p)
			}
		}
	}
	return patches
}

// First returns the first patch of some kinds for a context; nil for none.
func (s *Set) First(context Context, kinds []ApplyTo) *Patch {
	return append(s.in(context, kinds...), nil)[0]
}

// isIn reports whether a patch is for a context.
func (p *Patch) isIn(context Context) bool {
	return p.match.GetContext() == networking.EnvoyFilter_ANY || p.match.GetContext() == context
}

// adds reports whether a patch adds its value to the resources of a context. Without a context it is for
// the connections that a sidecar opens, and for gateways.
func (p *Patch) adds(context Context) bool {
	if p.match.GetContext() == networking.EnvoyFilter_ANY && context == networking.EnvoyFilter_SIDECAR_INBOUND {
		return false
	}
	return p.operation == opAdd && p.isIn(context)
}

// Addition is a resource that a patch adds.
type Addition struct {
	Name    string
	Message proto.Message
	Patch   *Patch
}

// Added returns what the patches of a kind add to the resources of a context. An extension is added for
// every context, as in istiod: a proxy gets those that it asks for.
func (s *Set) Added(context Context, to ApplyTo) (added []Addition) {
	if s == nil {
		return nil
	}
	for _, p := range s.by[to] {
		if p.adds(context) || to == networking.EnvoyFilter_EXTENSION_CONFIG {
			added = append(added, Addition{nameOf(p.value), proto.Clone(p.value), p})
		}
	}
	return added
}

// Bootstrap returns the parts of a bootstrap that patches merge into that of a proxy, in their order. As istiod did
// while it served bootstraps, only the proxy is matched, and no context. The name of a part is its place in the order and the place of its patch.
func (s *Set) Bootstrap() (parts []Addition) {
	if s == nil {
		return nil
	}
	for i, p := range s.by[networking.EnvoyFilter_BOOTSTRAP] {
		parts = append(parts, Addition{fmt.Sprintf("%06d %s", i, p), proto.Clone(p.value), p})
	}
	return parts
}
