package generate

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// originMetadata says which document made a resource, in the form of Istio, whose tools read it: the
// first that is not the zero Key. It is nil if there is none.
func originMetadata(origins ...config.Key) *corev3.Metadata {
	for _, origin := range origins {
		if origin == (config.Key{}) {
			continue
		}
		return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"istio": {Fields: map[string]*structpb.Value{"config": structpb.NewStringValue(origin.Path())}},
		}}
	}
	return nil
}

// OriginOf returns the document of a path that config.Key.Path made; ok is false for other texts.
func OriginOf(path string) (key config.Key, ok bool) {
	parts := strings.Split(path, "/") // "", apis, group, v1, namespaces, namespace, kind, name
	if len(parts) != 8 || parts[1] != "apis" {
		return config.Key{}, false
	}
	group := parts[2]
	if group == "core" {
		group = ""
	}
	for _, schema := range config.Schemas {
		if schema.Group == group && strings.EqualFold(schema.Kind.Short(), strings.ReplaceAll(parts[6], "-", "")) {
			return config.Key{Kind: schema.Kind, Namespace: parts[5], Name: parts[7]}, true
		}
	}
	return config.Key{}, false
}
