// Package fromyaml reads resources that tests write in YAML. It is apart from package xdstest because it needs all of
// Envoy's messages.
package fromyaml

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// Resource returns the resource of a type, without "@type", that a text in YAML describes.
func Resource(t testing.TB, typeURL, text string) *anypb.Any {
	t.Helper()
	found, err := envoytypes.Resolver.FindMessageByURL(typeURL)
	if err != nil {
		t.Fatal(err)
	}
	m := found.New().Interface()
	Into(t, text, m)
	return xdstest.Pack(m)
}

// Into reads a text in YAML into a message.
func Into(t testing.TB, text string, m proto.Message) {
	t.Helper()
	nodes, err := yamlproto.Read([]byte(text), yamlproto.YAML)
	if err != nil {
		t.Fatal(err)
	}
	if err := nodes[0].Unmarshal(m); err != nil {
		t.Fatal(err)
	}
}
