package xds

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestABuildIsAVersionAndARevision(t *testing.T) {
	built := func(metadata map[string]any) *corev3.Node {
		s, err := structpb.NewStruct(metadata)
		if err != nil {
			t.Fatal(err)
		}
		return &corev3.Node{UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40}, Metadata: s,
		}}}
	}
	for want, node := range map[string]*corev3.Node{
		"":                         {},
		"1.2-custom":               {UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.2-custom"}},
		"1.40.0":                   built(nil),
		"1.40.0-01234567":          built(map[string]any{"revision.sha": "0123456789abcdef", "revision.status": "Clean"}),
		"1.40.0-01234567-modified": built(map[string]any{"revision.sha": "01234567", "revision.status": "Modified"}),
		"1.40.0-ab":                built(map[string]any{"revision.sha": "ab", "build.type": "RELEASE"}),
	} {
		if got := Build(node); got != want {
			t.Errorf("build %q, want %q", got, want)
		}
	}
	if got := Build(nil); got != "" {
		t.Errorf("of no node: %q", got)
	}
}
