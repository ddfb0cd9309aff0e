package group

import (
	"hash/maphash"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// Key is what makes clients see the same: who they are, and by which generator
// a control plane makes their configuration (design.md section 3).
type Key struct{ Node, UserAgent, Generator string }

// KeyOf returns the kind of the clients with a Node.
func KeyOf(n *corev3.Node) Key {
	return Key{n.GetId(), n.GetUserAgentName(), n.GetMetadata().GetFields()["GENERATOR"].GetStringValue()}
}

// sameNode tells whether a control plane would tell two nodes of one kind the
// same: cluster, locality and metadata are what it generates from.
func sameNode(a, b *corev3.Node) bool {
	return a.GetCluster() == b.GetCluster() &&
		proto.Equal(a.GetLocality(), b.GetLocality()) &&
		proto.Equal(a.GetMetadata(), b.GetMetadata())
}

// nodeHash is a hash of a Node: what makes a control plane tell two clients of one kind different
// things, and more.
type nodeHash uint64

var nodeSeed = maphash.MakeSeed()

func hashNode(node *corev3.Node) nodeHash {
	rest := proto.CloneOf(node)
	rest.Extensions = nil
	key := hashMessage(rest)
	for _, e := range node.GetExtensions() {
		key += hashMessage(e) // Envoy 1.36 lists them in another order each time that it starts
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
