package agent

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// completed returns the Node of a client with what it leaves out taken from the
// configured one, which may be nil: the id, the cluster, the locality, and names in
// its metadata. A client with another id is somebody else, and gets nothing.
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
