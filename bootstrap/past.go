package bootstrap

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// PastAgent says which sources of Envoy's configuration do not lead to the agent's socket, and where to: an agent that Envoy does
// not ask keeps nothing for it.
func PastAgent(b *bootstrapv3.Bootstrap, socket string) (past []string) {
	dynamic := b.GetDynamicResources()
	add := func(field string, to []string) {
		for _, where := range to {
			past = append(past, fmt.Sprintf("dynamic_resources.%s is %s", field, where))
		}
	}
	add("ads_config", elsewhere(b, dynamic.GetAdsConfig(), socket))
	for _, of := range []struct {
		field  string
		source *corev3.ConfigSource
	}{{"lds_config", dynamic.GetLdsConfig()}, {"cds_config", dynamic.GetCdsConfig()}} {
		switch s := of.source.GetConfigSourceSpecifier().(type) {
		case *corev3.ConfigSource_ApiConfigSource:
			add(of.field, elsewhere(b, s.ApiConfigSource, socket))
		case *corev3.ConfigSource_PathConfigSource:
			add(of.field, []string{"the file " + s.PathConfigSource.GetPath()})
		case *corev3.ConfigSource_Path: // deprecated, and read by Envoy
			add(of.field, []string{"a file"})
		}
	}
	return past
}

// elsewhere returns the servers of a source other than the socket.
func elsewhere(b *bootstrapv3.Bootstrap, source *corev3.ApiConfigSource, socket string) (others []string) {
	clusters := slices.Clone(source.GetClusterNames())
	for _, service := range source.GetGrpcServices() {
		if google := service.GetGoogleGrpc(); google != nil {
			if path, ok := strings.CutPrefix(google.GetTargetUri(), "unix:"); !ok || !samePath("/"+strings.TrimLeft(path, "/"), socket) {
				others = append(others, google.GetTargetUri())
			}
			continue
		}
		clusters = append(clusters, service.GetEnvoyGrpc().GetClusterName())
	}
	for _, name := range clusters {
		known := slices.IndexFunc(b.GetStaticResources().GetClusters(), func(c *clusterv3.Cluster) bool { return c.GetName() == name })
		if known < 0 || !leadsTo(b.GetStaticResources().GetClusters()[known], socket) {
			others = append(others, fmt.Sprintf("the cluster %q", name))
		}
	}
	return others
}

// leadsTo reports whether the endpoints of a cluster are a socket.
func leadsTo(c *clusterv3.Cluster, socket string) bool {
	found := false
	for _, locality := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			if !samePath(e.GetEndpoint().GetAddress().GetPipe().GetPath(), socket) {
				return false
			}
			found = true
		}
	}
	return found
}

// samePath reports whether two paths, which may be relative, are the same.
func samePath(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, errX := filepath.Abs(a)
	y, errY := filepath.Abs(b)
	return errX == nil && errY == nil && x == y
}
