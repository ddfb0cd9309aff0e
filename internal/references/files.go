package references

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/walk"
)

// Files returns, sorted, the paths of the files that Envoy reads because of the body of a resource: of certificates, keys
// and other data, and of resources (path_config_source). It returns none if the type of the body is not known to this
// build.
func Files(body *anypb.Any) []string {
	m, err := envoytypes.Unpack(body)
	if err != nil {
		return nil
	}
	var paths []string
	files(m.ProtoReflect(), 0, &paths)
	slices.Sort(paths)
	return slices.Compact(paths)
}

func files(m protoreflect.Message, depth int, paths *[]string) {
	if depth > maxDepth {
		return
	}
	m = envoytypes.Linked(m)
	path := ""
	switch in := m.Interface().(type) {
	case *corev3.DataSource:
		path = in.GetFilename()
	case *corev3.PathConfigSource:
		path = in.GetPath()
	case *anypb.Any:
		if inner, err := envoytypes.Unpack(in); err == nil {
			files(inner.ProtoReflect(), depth+1, paths)
		}
		return
	}
	if path != "" {
		*paths = append(*paths, path)
	}
	for inner := range walk.Messages(m) {
		files(inner, depth+1, paths)
	}
}
