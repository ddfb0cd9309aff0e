package bootstrap

import (
	"maps"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ReadTemplate reads the bootstrap at path, JSON or YAML by its extension. Errors name the file, the line and the field.
func ReadTemplate(path string) (*bootstrapv3.Bootstrap, error) {
	return readFile("template", path, decodeBootstrap)
}

// Complete returns template with the parts of Build(cfg) that it lacks: fields of the node, the sources of listeners and
// clusters, static clusters and listeners with other names, and every other field. It does not change what the template
// has. It returns the error of Build.
func Complete(template *bootstrapv3.Bootstrap, cfg Config) (*bootstrapv3.Bootstrap, error) {
	made, err := Build(cfg)
	if err != nil {
		return nil, err
	}
	b := proto.CloneOf(template)
	fill(b, made)
	fill(b.Node, made.Node)
	if m := b.GetNode().GetMetadata(); m != nil { // of the template, or filled in
		fields := maps.Clone(made.GetNode().GetMetadata().GetFields())
		maps.Copy(fields, m.GetFields())
		m.Fields = fields
	}
	fill(b.DynamicResources, made.DynamicResources)
	resources := b.GetStaticResources()
	for _, c := range made.GetStaticResources().GetClusters() {
		if !slices.ContainsFunc(resources.Clusters, func(has *clusterv3.Cluster) bool { return has.GetName() == c.GetName() }) {
			resources.Clusters = append(resources.Clusters, c)
		}
	}
	for _, l := range made.GetStaticResources().GetListeners() {
		if !slices.ContainsFunc(resources.Listeners, func(has *listenerv3.Listener) bool { return has.GetName() == l.GetName() }) {
			resources.Listeners = append(resources.Listeners, l)
		}
	}
	return b, nil
}

// fill sets the unset fields of m to those of from.
func fill(m, from interface{ ProtoReflect() protoreflect.Message }) {
	to := m.ProtoReflect()
	from.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		taken := to.Has(fd) || fd.ContainingOneof() != nil && to.WhichOneof(fd.ContainingOneof()) != nil
		if !taken {
			to.Set(fd, v)
		}
		return true
	})
}
