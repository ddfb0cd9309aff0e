package istio

import (
	"bytes"
	"fmt"
	"strings"

	udpatypev1 "github.com/cncf/xds/go/udpa/type/v1"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/walk"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// The messages of Wasm filters. wasmMark is in the type URL of each, and therefore in the bytes of every
// resource that contains one.
const (
	httpWasm    = "envoy.extensions.filters.http.wasm.v3.Wasm"
	networkWasm = "envoy.extensions.filters.network.wasm.v3.Wasm"
)

var wasmMark = []byte(".wasm.v3.Wasm")

// placeholder is the cluster that istiod writes into a module for pilot-agent to download. Envoy has no
// cluster of that name.
const placeholder = "_"

// maxWasmDepth bounds how deeply messages are searched: a listener, its filter, an HTTP filter, and those
// that have filters of their own.
const maxWasmDepth = 64

// CheckResource returns an error for a listener or an extension configuration with a Wasm module that
// istiod expects the agent to download. Envoy accepts such a resource, cannot load the module, and then
// rejects every request, whether or not the failure policy is FAIL_OPEN; so the resource must not reach
// Envoy. Envoy keeps what it had; a new Envoy whose listener refers to such an extension configuration stays
// INITIALIZING, because istiod's listeners wait without a timeout. Resources of other types, and those whose
// bytes do not have the name of a Wasm filter, are not decoded. A resource that cannot be decoded is left to
// Envoy. What comes from files, from a seed or from disk is not checked: it is not istiod's, or was accepted.
func CheckResource(r *xds.Resource) error {
	if r.Type != xds.ListenerType && r.Type != xds.ExtensionConfigType || !bytes.Contains(r.Body.GetValue(), wasmMark) {
		return nil
	}
	uri, found := downloaded(r.Body, maxWasmDepth)
	if !found {
		return nil
	}
	return fmt.Errorf("%s %q: a Wasm filter has its module at %q, which the agent is expected to download, and holdfast does not download Wasm modules yet: "+
		"use a module in a local file (a URL file://…), or remove the WasmPlugin from this workload", xds.Short(r.Type), r.Name, withoutQuery(uri))
}

// withoutQuery returns a URI without its user, its query and its fragment, which may be secrets. The user is masked first, because
// a password may contain a question mark.
func withoutQuery(uri string) string {
	uri = redact.MaskURL(uri)
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i+1] + redact.Marker
	}
	return uri
}

// downloaded returns the URI of a module in a message that the agent is expected to download. It searches
// messages within messages down to a depth.
func downloaded(body *anypb.Any, depth int) (uri string, found bool) {
	if !bytes.Contains(body.GetValue(), wasmMark) && !isWasm(body.GetTypeUrl()) {
		return "", false
	}
	m, err := envoytypes.Unpack(body)
	if err != nil {
		return "", false
	}
	switch m := m.(type) {
	case *httpwasmv3.Wasm:
		return moduleToDownload(m.GetConfig())
	case *networkwasmv3.Wasm:
		return moduleToDownload(m.GetConfig())
	case *xdstypev3.TypedStruct:
		return moduleInStruct(m.GetTypeUrl(), m.GetValue())
	case *udpatypev1.TypedStruct:
		return moduleInStruct(m.GetTypeUrl(), m.GetValue())
	}
	return search(m.ProtoReflect(), depth-1)
}

// search searches the messages in m for an Any with a module to download.
func search(m protoreflect.Message, depth int) (uri string, found bool) {
	if depth <= 0 {
		return "", false
	}
	for inner := range walk.Messages(m) {
		if body, ok := envoytypes.Linked(inner).Interface().(*anypb.Any); ok {
			uri, found = downloaded(body, depth-1)
		} else {
			uri, found = search(inner, depth-1)
		}
		if found {
			return uri, true
		}
	}
	return "", false
}

func isWasm(typeURL string) bool {
	name := typeURL[strings.LastIndex(typeURL, "/")+1:]
	return name == httpWasm || name == networkWasm
}

func moduleToDownload(config *wasmv3.PluginConfig) (uri string, found bool) {
	http := config.GetVmConfig().GetCode().GetRemote().GetHttpUri()
	return http.GetUri(), http.GetCluster() == placeholder
}

// moduleInStruct reads the configuration of a Wasm filter that is written as a Struct, with the names of
// the fields as in JSON or as in the message.
func moduleInStruct(typeURL string, config *structpb.Struct) (uri string, found bool) {
	if !isWasm(typeURL) {
		return "", false
	}
	for _, names := range [][2]string{{"config"}, {"vmConfig", "vm_config"}, {"code"}, {"remote"}, {"httpUri", "http_uri"}} {
		inner := config.GetFields()[names[0]]
		if inner == nil && names[1] != "" {
			inner = config.GetFields()[names[1]]
		}
		config = inner.GetStructValue()
	}
	return config.GetFields()["uri"].GetStringValue(), config.GetFields()["cluster"].GetStringValue() == placeholder
}
