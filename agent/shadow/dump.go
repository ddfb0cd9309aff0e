package shadow

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Held is what an Envoy has of one resource, according to its config_dump.
type Held struct {
	// Active is in use, Warming waits for something that it needs. One of both may be nil.
	Active, Warming proto.Message
	// Failed is the content that Envoy NACKed last, and Reason why; nil for none. Envoy's dump has it for listeners and clusters.
	Failed proto.Message
	Reason string
}

// Dump is what an Envoy says of itself: who it is, what it asks its control plane for, and what it has.
type Dump struct {
	// Node is the Node that Envoy sends.
	Node *corev3.Node
	// ADS describes where Envoy's ADS stream leads to, or without one its clusters and listeners come from: the name of a cluster,
	// and its addresses if the bootstrap has them. It is never "".
	ADS string
	// Wildcards are the types of which Envoy asks for all resources.
	Wildcards map[string]bool
	// Held has what Envoy has of the resources that it asks for by ADS.
	Held map[xds.Key]*Held
	// Names are what Envoy asks for by name.
	Names map[xds.Key]bool
	// Elsewhere counts, by type URL, the resources that Envoy has from another source than its ADS stream.
	Elsewhere map[string]int
	// Checked are the names of endpoints that Envoy checks itself, by health checks or as outliers.
	Checked map[string]bool

	adsCluster string
}

// unknownType replaces the content of an Any whose type this build does not know, on both sides.
const unknownType = "type.googleapis.com/google.protobuf.StringValue"

// Parse reads the answer of Envoy's /config_dump?include_eds.
func Parse(dump []byte) (*Dump, error) {
	var tree any
	if err := json.Unmarshal(dump, &tree); err != nil {
		return nil, fmt.Errorf("config_dump: %w", err)
	}
	replaceUnknown(tree)
	known, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("config_dump: %w", err)
	}
	var whole adminv3.ConfigDump
	options := protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: envoytypes.Resolver}
	if err := options.Unmarshal(known, &whole); err != nil {
		return nil, fmt.Errorf("config_dump: %s", redact.Line(err.Error()))
	}
	d := &Dump{
		Wildcards: make(map[string]bool), Held: make(map[xds.Key]*Held), Names: make(map[xds.Key]bool),
		Elsewhere: make(map[string]int), Checked: make(map[string]bool),
	}
	parts := make([]proto.Message, 0, len(whole.GetConfigs()))
	for _, config := range whole.GetConfigs() {
		part, err := envoytypes.Unpack(config)
		if err != nil {
			return nil, fmt.Errorf("config_dump: %w", err)
		}
		parts = append(parts, part)
		if b, ok := part.(*adminv3.BootstrapConfigDump); ok {
			d.bootstrap(b.GetBootstrap())
		}
	}
	switch {
	case d.Node == nil:
		return nil, errors.New("config_dump: it has no bootstrap: is this the admin interface of an Envoy?")
	case d.ADS == "":
		return nil, errors.New("this Envoy asks no control plane for listeners and clusters: there is nothing to compare")
	}
	found := make(map[xds.Key]*Held)
	for _, part := range parts {
		for key, held := range contents(part) {
			found[key] = held
		}
	}
	d.take(found)
	return d, nil
}

// replaceUnknown replaces each Any of a type that this build does not know.
func replaceUnknown(tree any) {
	switch at := tree.(type) {
	case []any:
		for _, inner := range at {
			replaceUnknown(inner)
		}
	case map[string]any:
		if url, ok := at["@type"].(string); ok {
			if _, err := envoytypes.Resolver.FindMessageByURL(url); err != nil {
				clear(at)
				at["@type"], at["value"] = unknownType, url
				return
			}
		}
		for _, inner := range at {
			replaceUnknown(inner)
		}
	}
}

// bootstrap takes from the bootstrap who Envoy is, and where it gets what.
func (d *Dump) bootstrap(b *bootstrapv3.Bootstrap) {
	d.Node = b.GetNode()
	if d.Node == nil {
		d.Node = &corev3.Node{}
	}
	dynamic := b.GetDynamicResources()
	for _, source := range []*corev3.ApiConfigSource{
		dynamic.GetAdsConfig(), dynamic.GetCdsConfig().GetApiConfigSource(), dynamic.GetLdsConfig().GetApiConfigSource(),
	} {
		if d.adsCluster = clusterOf(source); d.ADS == "" {
			d.ADS = cmp.Or(d.adsCluster, first(source.GetGrpcServices()).GetGoogleGrpc().GetTargetUri())
		}
		if d.ADS != "" {
			break
		}
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() != d.adsCluster {
			continue
		}
		if at := addresses(c.GetLoadAssignment()); len(at) > 0 {
			d.ADS += " (" + strings.Join(at, ", ") + ")"
		}
	}
	d.Wildcards[xds.ListenerType] = d.fromADS(dynamic.GetLdsConfig())
	d.Wildcards[xds.ClusterType] = d.fromADS(dynamic.GetCdsConfig())
}

// addresses lists the addresses of endpoints.
func addresses(a *endpointv3.ClusterLoadAssignment) (all []string) {
	for _, locality := range a.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			address := e.GetEndpoint().GetAddress()
			if path := address.GetPipe().GetPath(); path != "" {
				all = append(all, "unix:"+path)
			} else if socket := address.GetSocketAddress(); socket != nil {
				all = append(all, fmt.Sprintf("%s:%d", socket.GetAddress(), socket.GetPortValue()))
			}
		}
	}
	return all
}

// clusterOf returns the cluster that a source asks, "" for none. Envoy uses the first one.
func clusterOf(source *corev3.ApiConfigSource) string {
	return cmp.Or(first(source.GetGrpcServices()).GetEnvoyGrpc().GetClusterName(), first(source.GetClusterNames()))
}

// first returns the first of several, or the zero value.
func first[T any](all []T) (one T) {
	if len(all) > 0 {
		one = all[0]
	}
	return one
}

// fromADS reports whether a source of configuration is the ADS stream, or leads to the same control plane.
func (d *Dump) fromADS(source *corev3.ConfigSource) bool {
	if source.GetAds() != nil {
		return true
	}
	cluster := clusterOf(source.GetApiConfigSource())
	return cluster != "" && cluster == d.adsCluster
}

// contents yields what one part of a config_dump says of resources from a control plane.
func contents(part proto.Message) iter.Seq2[xds.Key, *Held] {
	return func(yield func(xds.Key, *Held) bool) {
		switch part := part.(type) {
		case *adminv3.ListenersConfigDump:
			listeners(part, yield)
		case *adminv3.ClustersConfigDump:
			clusters(part, yield)
		case *adminv3.RoutesConfigDump:
			for _, r := range part.GetDynamicRouteConfigs() {
				if m := content(r.GetRouteConfig()); m != nil && !yield(xds.Key{Type: xds.RouteType, Name: nameOf(m)}, &Held{Active: m}) {
					return
				}
			}
		case *adminv3.ScopedRoutesConfigDump:
			for _, set := range part.GetDynamicScopedRouteConfigs() {
				for _, scope := range set.GetScopedRouteConfigs() {
					if m := content(scope); m != nil && !yield(xds.Key{Type: xds.ScopedRouteType, Name: nameOf(m)}, &Held{Active: m}) {
						return
					}
				}
			}
		case *adminv3.EndpointsConfigDump:
			for _, e := range part.GetDynamicEndpointConfigs() {
				if m := content(e.GetEndpointConfig()); m != nil && !yield(xds.Key{Type: xds.EndpointType, Name: nameOf(m)}, &Held{Active: m}) {
					return
				}
			}
		case *adminv3.SecretsConfigDump:
			for _, s := range part.GetDynamicActiveSecrets() {
				held := &Held{Active: content(s.GetSecret())}
				held.failed(s.GetErrorState())
				if !yield(xds.Key{Type: xds.SecretType, Name: s.GetName()}, held) {
					return
				}
			}
		case *adminv3.EcdsConfigDump:
			for _, f := range part.GetEcdsFilters() {
				if m := content(f.GetEcdsFilter()); m != nil && !yield(xds.Key{Type: xds.ExtensionConfigType, Name: nameOf(m)}, &Held{Active: m}) {
					return
				}
			}
		}
	}
}

// byName has what is said of several resources of a type.
type byName map[string]*Held

func (b byName) of(name string) *Held {
	if b[name] == nil {
		b[name] = &Held{}
	}
	return b[name]
}

// failed records a rejected content under its own name: a listener or cluster that was never accepted has an entry without a name.
func (b byName) failed(state *adminv3.UpdateFailureState) {
	if m := content(state.GetFailedConfiguration()); m != nil {
		b.of(nameOf(m)).failed(state)
	}
}

func (b byName) each(typeURL string, yield func(xds.Key, *Held) bool) {
	for name, held := range b {
		if !yield(xds.Key{Type: typeURL, Name: name}, held) {
			return
		}
	}
}

func listeners(part *adminv3.ListenersConfigDump, yield func(xds.Key, *Held) bool) {
	all := make(byName)
	for _, l := range part.GetDynamicListeners() {
		if m := content(l.GetActiveState().GetListener()); m != nil {
			all.of(l.GetName()).Active = m
		}
		if m := content(l.GetWarmingState().GetListener()); m != nil {
			all.of(l.GetName()).Warming = m
		}
		all.failed(l.GetErrorState())
	}
	all.each(xds.ListenerType, yield)
}

func clusters(part *adminv3.ClustersConfigDump, yield func(xds.Key, *Held) bool) {
	all := make(byName)
	for _, c := range part.GetDynamicActiveClusters() {
		if m := content(c.GetCluster()); m != nil {
			all.of(nameOf(m)).Active = m
		}
		all.failed(c.GetErrorState())
	}
	for _, c := range part.GetDynamicWarmingClusters() {
		if m := content(c.GetCluster()); m != nil {
			all.of(nameOf(m)).Warming = m
		}
		all.failed(c.GetErrorState())
	}
	all.each(xds.ClusterType, yield)
}

func (h *Held) failed(state *adminv3.UpdateFailureState) {
	if state == nil {
		return
	}
	h.Failed, h.Reason = content(state.GetFailedConfiguration()), redact.Line(state.GetDetails())
}

// content unpacks an Any; nil if there is none, or its type is not known.
func content(a *anypb.Any) proto.Message {
	if a == nil {
		return nil
	}
	m, err := envoytypes.Unpack(a)
	if err != nil {
		return nil
	}
	return envoytypes.Linked(m.ProtoReflect()).Interface()
}

// nameOf returns the name of a resource.
func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}

// take decides which of the contents Envoy has from its ADS stream, and finds what it asks for by name.
func (d *Dump) take(found map[xds.Key]*Held) {
	for _, held := range found {
		d.refer(held)
	}
	for key, held := range found {
		if d.Wildcards[key.Type] || d.Names[key] {
			d.Held[key] = held
		} else {
			d.Elsewhere[key.Type]++
		}
	}
}

// refer adds what a resource that Envoy has makes it ask for.
func (d *Dump) refer(held *Held) {
	for _, m := range []proto.Message{held.Active, held.Warming} {
		if m == nil {
			continue
		}
		if c, ok := m.(*clusterv3.Cluster); ok && (len(c.GetHealthChecks()) > 0 || c.GetOutlierDetection() != nil) {
			d.Checked[cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())] = true
		}
		body, err := anypb.New(m)
		if err != nil {
			continue // it was unpacked from one
		}
		for _, ref := range references.Of(body) {
			if !d.asks(ref) {
				continue
			}
			if ref.Name == "" {
				d.Wildcards[ref.Type] = true
				continue
			}
			d.Names[xds.Key{Type: ref.Type, Name: ref.Name}] = true
		}
	}
	if r, ok := held.Active.(*routev3.ScopedRouteConfiguration); ok {
		d.Names[xds.Key{Type: xds.RouteType, Name: r.GetRouteConfigurationName()}] = true
	}
}

// asks reports whether a reference makes Envoy ask on its ADS stream: a route's cluster does not.
func (d *Dump) asks(ref references.Reference) bool {
	if ref.Source == nil {
		return false
	}
	return d.fromADS(ref.Source) || ref.Source.GetSelf() != nil
}
