package export

import (
	"fmt"
	"maps"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// ownResources inlines what the bootstrap itself gets from the agent: runtime layers, and what its static resources and
// extensions refer to. Sources that only say where Envoy finds an agent are taken out.
func (w *writer) ownResources() error {
	b := w.result.Bootstrap
	for _, layer := range b.GetLayeredRuntime().GetLayers() {
		if rtds := layer.GetRtdsLayer(); rtds != nil && references.NeedsControlPlane(rtds.GetRtdsConfig()) {
			w.current = fmt.Sprintf("runtime layer %q", layer.GetName())
			values, err := w.runtimeLayer(rtds.GetName())
			if err != nil {
				return err
			}
			layer.LayerSpecifier = &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: values}
		}
	}
	if references.NeedsControlPlane(b.GetDefaultConfigSource()) {
		b.DefaultConfigSource = nil
	}
	b.ConfigSources = slices.DeleteFunc(b.GetConfigSources(), references.NeedsControlPlane)
	dynamic := b.GetDynamicResources()
	b.DynamicResources = nil
	w.current = "bootstrap"
	err := w.inline(b.ProtoReflect(), 0)
	b.DynamicResources = dynamic
	if err != nil {
		return fmt.Errorf("export: bootstrap: %w", err)
	}
	return nil
}

// runtimeLayer returns the values of a stored layer, empty ones if it is missing.
func (w *writer) runtimeLayer(name string) (*structpb.Struct, error) {
	r := w.lookup(xds.RuntimeType, name)
	if r == nil {
		return &structpb.Struct{}, nil
	}
	var layer runtimev3.Runtime
	if err := r.Body.UnmarshalTo(&layer); err != nil {
		return nil, fmt.Errorf("RTDS %q: %w", name, err)
	}
	return layer.GetLayer(), nil
}

// finish points the bootstrap to the files, and takes the agent out of it.
func (w *writer) finish() {
	b := w.result.Bootstrap
	before := b.GetDynamicResources()
	after := &bootstrapv3.Bootstrap_DynamicResources{CdsConfig: before.GetCdsConfig(), LdsConfig: before.GetLdsConfig()}
	// A file of the user's own stays, but what the agent had is served.
	if s := after.GetCdsConfig(); references.NeedsControlPlane(s) || s == nil || len(w.result.clusters) > 0 {
		after.CdsConfig = bootstrap.FileSource(w.cfg.Dir + "/" + w.result.Clusters)
	}
	if s := after.GetLdsConfig(); references.NeedsControlPlane(s) || s == nil || len(w.result.listeners) > 0 {
		after.LdsConfig = bootstrap.FileSource(w.cfg.Dir + "/" + w.result.Listeners)
	}
	b.DynamicResources = after
	w.referToClusters(servers(before.GetAdsConfig(), before.GetCdsConfig().GetApiConfigSource(), before.GetLdsConfig().GetApiConfigSource()))
	w.result.Secret = bootstrap.Sensitive(b) != ""
}

// servers returns the names of the clusters in which sources find their servers.
func servers(sources ...*corev3.ApiConfigSource) (names []string) {
	for _, s := range sources {
		names = append(names, s.GetClusterNames()...)
		for _, service := range s.GetGrpcServices() {
			names = append(names, service.GetEnvoyGrpc().GetClusterName())
		}
	}
	return names
}

// referToClusters takes the static clusters of these names, which lead to the agent, out of the bootstrap, unless something
// refers to them. If the bootstrap is not Envoy's own, clusters that are referred to and are nowhere are missing.
func (w *writer) referToClusters(agents []string) {
	b := w.result.Bootstrap
	known := make(map[string]struct{})
	for name := range w.stored[xds.ClusterType] {
		known[name] = struct{}{}
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		known[c.GetName()] = struct{}{}
	}
	used := make(map[string]struct{})
	look := func(what string, body *anypb.Any) {
		for _, ref := range references.Of(body) {
			if ref.Type != xds.ClusterType {
				continue
			}
			used[ref.Name] = struct{}{}
			if _, is := known[ref.Name]; !is {
				w.current = what
				w.needsOwn("the cluster %q", ref.Name)
			}
		}
	}
	for n, name := range slices.Sorted(maps.Keys(w.stored[xds.ClusterType])) {
		look(fmt.Sprintf("CDS %q", name), w.result.clusters[n])
	}
	for n, name := range slices.Sorted(maps.Keys(w.stored[xds.ListenerType])) {
		look(fmt.Sprintf("LDS %q", name), w.result.listeners[n])
	}
	if packed, err := anypb.New(b); err == nil {
		look("bootstrap", packed)
	}
	static := b.GetStaticResources()
	if static == nil {
		return
	}
	static.Clusters = slices.DeleteFunc(static.GetClusters(), func(c *clusterv3.Cluster) bool {
		if _, is := used[c.GetName()]; !is {
			return slices.Contains(agents, c.GetName())
		}
		if slices.Contains(agents, c.GetName()) {
			w.current = "bootstrap"
			w.addNote("the static cluster %q, in which the agent was, stays: something else refers to it", c.GetName())
		}
		return false
	})
}

// needsOwn says that something in the bootstrap of the Envoy is needed, if that is not known.
func (w *writer) needsOwn(format string, args ...any) {
	if !w.cfg.Own {
		w.addMissing(format+" is not stored, but may be in Envoy's own bootstrap", args...)
	}
}

// Static returns the bootstrap with all clusters and listeners in it: `envoy --mode validate` reads no files of resources.
func (r *Result) Static() (*bootstrapv3.Bootstrap, error) {
	b := proto.CloneOf(r.Bootstrap)
	b.DynamicResources = nil
	if b.GetStaticResources() == nil {
		b.StaticResources = &bootstrapv3.Bootstrap_StaticResources{}
	}
	static := b.GetStaticResources()
	for _, body := range r.clusters {
		c := &clusterv3.Cluster{}
		if err := body.UnmarshalTo(c); err != nil {
			return nil, fmt.Errorf("export: %w", err)
		}
		if !slices.ContainsFunc(static.GetClusters(), func(own *clusterv3.Cluster) bool { return own.GetName() == c.GetName() }) {
			static.Clusters = append(static.Clusters, c)
		}
	}
	for _, body := range r.listeners {
		l := &listenerv3.Listener{}
		if err := body.UnmarshalTo(l); err != nil {
			return nil, fmt.Errorf("export: %w", err)
		}
		if !slices.ContainsFunc(static.GetListeners(), func(own *listenerv3.Listener) bool { return own.GetName() == l.GetName() }) {
			static.Listeners = append(static.Listeners, l)
		}
	}
	return b, nil
}
