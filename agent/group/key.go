package group

import (
	"hash/maphash"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// Key identifies a group: the clients with one Key get one configuration. They have the same node
// id and the same user agent name, and the control plane uses the same generator for them
// (design.md section 3).
type Key struct{ Node, UserAgent, Generator string }

// KeyOf returns the Key of the group of the clients with a Node.
func KeyOf(n *corev3.Node) Key {
	return Key{n.GetId(), n.GetUserAgentName(), n.GetMetadata().GetFields()["GENERATOR"].GetStringValue()}
}

// sameNode reports whether a control plane generates the same configuration for two nodes of one
// group: it may use cluster, locality and metadata.
func sameNode(a, b *corev3.Node) bool {
	return a.GetCluster() == b.GetCluster() &&
		proto.Equal(a.GetLocality(), b.GetLocality()) &&
		proto.Equal(a.GetMetadata(), b.GetMetadata())
}

// nodeHash is a hash of a Node.
type nodeHash uint64

var nodeSeed = maphash.MakeSeed()

func hashNode(node *corev3.Node) nodeHash {
	rest := proto.CloneOf(node)
	rest.Extensions = nil
	key := hashMessage(rest)
	for _, e := range node.GetExtensions() {
		key += hashMessage(e) // the order does not count: Envoy 1.36 changes it with each start
	}
	return key
}

func hashMessage(m proto.Message) nodeHash {
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return 0 // it was just unmarshalled
	}
	return nodeHash(maphash.Bytes(nodeSeed, wire))
}
