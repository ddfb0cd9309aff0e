package generate

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// edge has the settings of the profile EDGE, which is for gateways: what Envoy's documentation
// recommends for proxies that clients of all kinds reach.
var edge = &meshv1alpha1.ProxyConfig_ConnectionSettings{
	ListenerPerConnectionBufferLimitBytes: wrapperspb.Int32(32 << 10),
	HttpIdleTimeout:                       seconds(time.Hour),
	HttpStreamIdleTimeout:                 seconds(5 * time.Minute),
	HttpRequestTimeout:                    seconds(5 * time.Minute),
	HttpRequestHeadersTimeout:             seconds(time.Minute),
	HttpMaxConcurrentStreams:              wrapperspb.Int32(100),
	Http2InitialStreamWindowSize:          wrapperspb.Int32(64 << 10),
	Http2InitialConnectionWindowSize:      wrapperspb.Int32(1 << 20),
	HttpHeadersWithUnderscoresAction:      meshv1alpha1.ProxyConfig_ConnectionSettings_HEADERS_WITH_UNDERSCORES_REJECT_REQUEST,
	HttpMergeSlashes:                      truth(true),
	HttpPathWithEscapedSlashesAction:      meshv1alpha1.ProxyConfig_ConnectionSettings_UNESCAPE_AND_REDIRECT,
}

// connectionSettings returns how proxies handle connections of clients, with what the profile sets for
// gateways; nil for Envoy's defaults.
func (g *Generator) connectionSettings(d direction) *meshv1alpha1.ProxyConfig_ConnectionSettings {
	own := g.config().GetConnectionSettings()
	if own.GetProfile() != meshv1alpha1.ProxyConfig_ConnectionSettings_EDGE || d != gateway {
		return own
	}
	settings := proto.CloneOf(edge)
	own.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		settings.ProtoReflect().Set(field, value)
		return true
	})
	return settings
}

// atLeastZero returns a number that may not be negative; nil for one that is, or for none.
func atLeastZero(n *wrapperspb.Int32Value) *wrapperspb.UInt32Value {
	if n == nil || n.GetValue() < 0 {
		return nil
	}
	return u32(uint32(n.GetValue()))
}

// setConnections says how a manager handles the connections of clients, and paths and headers of which
// servers may think differently.
func (g *Generator) setConnections(m *managerv3.HttpConnectionManager, d direction) {
	s := g.connectionSettings(d)
	if s == nil {
		return
	}
	underscores := map[meshv1alpha1.ProxyConfig_ConnectionSettings_HeadersWithUnderscoresAction]corev3.HttpProtocolOptions_HeadersWithUnderscoresAction{
		meshv1alpha1.ProxyConfig_ConnectionSettings_HEADERS_WITH_UNDERSCORES_REJECT_REQUEST: corev3.HttpProtocolOptions_REJECT_REQUEST,
		meshv1alpha1.ProxyConfig_ConnectionSettings_HEADERS_WITH_UNDERSCORES_DROP_HEADER:    corev3.HttpProtocolOptions_DROP_HEADER,
	}[s.GetHttpHeadersWithUnderscoresAction()]
	common := &corev3.HttpProtocolOptions{
		IdleTimeout: s.GetHttpIdleTimeout(), MaxConnectionDuration: s.GetHttpMaxConnectionDuration(),
		MaxStreamDuration: s.GetHttpMaxStreamDuration(), HeadersWithUnderscoresAction: underscores,
	}
	if proto.Size(common) > 0 {
		m.CommonHttpProtocolOptions = common
	}
	if s.GetHttpStreamIdleTimeout() != nil {
		m.StreamIdleTimeout = s.GetHttpStreamIdleTimeout()
	}
	m.RequestTimeout, m.RequestHeadersTimeout, m.DrainTimeout = s.GetHttpRequestTimeout(), s.GetHttpRequestHeadersTimeout(), s.GetHttpDrainTimeout()
	h2 := &corev3.Http2ProtocolOptions{
		MaxConcurrentStreams:        atLeastZero(s.GetHttpMaxConcurrentStreams()),
		InitialStreamWindowSize:     atLeastZero(s.GetHttp2InitialStreamWindowSize()),
		InitialConnectionWindowSize: atLeastZero(s.GetHttp2InitialConnectionWindowSize()),
	}
	if proto.Size(h2) > 0 {
		m.Http2ProtocolOptions = h2
	}
	if s.GetHttpMergeSlashes() != nil {
		m.MergeSlashes = s.GetHttpMergeSlashes().GetValue()
	}
	if action := s.GetHttpPathWithEscapedSlashesAction(); action != meshv1alpha1.ProxyConfig_ConnectionSettings_PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED {
		m.PathWithEscapedSlashesAction = map[meshv1alpha1.ProxyConfig_ConnectionSettings_PathWithEscapedSlashesAction]managerv3.HttpConnectionManager_PathWithEscapedSlashesAction{
			meshv1alpha1.ProxyConfig_ConnectionSettings_KEEP_UNCHANGED:        managerv3.HttpConnectionManager_KEEP_UNCHANGED,
			meshv1alpha1.ProxyConfig_ConnectionSettings_REJECT_REQUEST:        managerv3.HttpConnectionManager_REJECT_REQUEST,
			meshv1alpha1.ProxyConfig_ConnectionSettings_UNESCAPE_AND_REDIRECT: managerv3.HttpConnectionManager_UNESCAPE_AND_REDIRECT,
			meshv1alpha1.ProxyConfig_ConnectionSettings_UNESCAPE_AND_FORWARD:  managerv3.HttpConnectionManager_UNESCAPE_AND_FORWARD,
		}[action]
	}
}
