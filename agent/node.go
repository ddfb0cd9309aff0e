package agent

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// completed returns the Node of a client, completed from the configured Node, which may be nil: with
// its id, cluster, locality and metadata. The Node of a client with another id is not changed.
func completed(node, configured *corev3.Node) *corev3.Node {
	if configured == nil || node.GetId() != "" && node.GetId() != configured.GetId() {
		return node
	}
	var missing []string
	for name := range configured.GetMetadata().GetFields() {
		if _, ok := node.GetMetadata().GetFields()[name]; !ok {
			missing = append(missing, name)
		}
	}
	if node.GetId() != "" && node.GetCluster() != "" && (node.GetLocality() != nil || configured.GetLocality() == nil) && len(missing) == 0 {
		return node
	}
	node = proto.CloneOf(node)
	node.Id = configured.GetId()
	if node.GetCluster() == "" {
		node.Cluster = configured.GetCluster()
	}
	if node.GetLocality() == nil {
		node.Locality = proto.CloneOf(configured.GetLocality())
	}
	for _, name := range missing {
		if node.GetMetadata().GetFields() == nil {
			node.Metadata = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
		}
		node.Metadata.Fields[name] = configured.GetMetadata().GetFields()[name]
	}
	return node
}
