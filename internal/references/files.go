package references

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/walk"
)

// readFiles are the fields, by their messages, that have the path of a file that Envoy reads. TestEveryFieldThatHasAPathIsKnown holds the table
// against the descriptors of Envoy's API.
var readFiles = fieldsOf(
	"envoy.config.core.v3.ConfigSource.path",
	"envoy.config.core.v3.DataSource.filename",
	"envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.StsService.actor_token_path",
	"envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.StsService.subject_token_path",
	"envoy.config.core.v3.PathConfigSource.path",
	"envoy.config.core.v3.SocketAddress.network_namespace_filepath",
	"envoy.config.trace.v3.DynamicOtConfig.library",
	"envoy.config.trace.v3.LightstepConfig.access_token_file",
	"envoy.extensions.filters.http.grpc_json_reverse_transcoder.v3.GrpcJsonReverseTranscoder.descriptor_path",
	"envoy.extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder.proto_descriptor",
	"envoy.extensions.geoip_providers.maxmind.v3.MaxMindConfig.anon_db_path",
	"envoy.extensions.geoip_providers.maxmind.v3.MaxMindConfig.asn_db_path",
	"envoy.extensions.geoip_providers.maxmind.v3.MaxMindConfig.city_db_path",
	"envoy.extensions.geoip_providers.maxmind.v3.MaxMindConfig.country_db_path",
	"envoy.extensions.geoip_providers.maxmind.v3.MaxMindConfig.isp_db_path",
	"envoy.extensions.grpc_service.call_credentials.sts_service.v3.StsServiceCredentials.actor_token_path",
	"envoy.extensions.grpc_service.call_credentials.sts_service.v3.StsServiceCredentials.subject_token_path",
	"envoy.extensions.resource_monitors.injected_resource.v3.InjectedResourceConfig.filename",
)

// fieldsOf returns the fields with these full names, by the full names of their messages.
func fieldsOf(names ...protoreflect.FullName) map[protoreflect.FullName][]protoreflect.Name {
	out := make(map[protoreflect.FullName][]protoreflect.Name)
	for _, name := range names {
		out[name.Parent()] = append(out[name.Parent()], name.Name())
	}
	return out
}

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
	if in, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := envoytypes.Unpack(in); err == nil {
			files(inner.ProtoReflect(), depth+1, paths)
		}
		return
	}
	for _, name := range readFiles[m.Descriptor().FullName()] {
		if field := m.Descriptor().Fields().ByName(name); field != nil && m.Has(field) && m.Get(field).String() != "" {
			*paths = append(*paths, m.Get(field).String())
		}
	}
	for inner := range walk.Messages(m) {
		files(inner, depth+1, paths)
	}
}
