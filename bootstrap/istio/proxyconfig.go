package istio

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"
)

const configAnnotation = "proxy.istio.io/config"

// defaults returns the ProxyConfig of a mesh without one, except the paths of pilot-agent's own files. The webhook omits
// what has its default, and istiod expects a complete ProxyConfig in the metadata.
func defaults() *meshv1.ProxyConfig {
	return &meshv1.ProxyConfig{
		ClusterName:              &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: defaultCluster},
		DrainDuration:            durationpb.New(45 * time.Second),
		TerminationDrainDuration: durationpb.New(5 * time.Second),
		ProxyAdminPort:           15000,
		ControlPlaneAuthPolicy:   meshv1.AuthenticationPolicy_MUTUAL_TLS,
		DiscoveryAddress:         "istiod.istio-system.svc:15012",
		StatNameLength:           189,
		StatusPort:               15020,
	}
}

// unknownField matches the error of protojson for a field that the message does not have.
var unknownField = regexp.MustCompile(`unknown field "[^"]*"`)

// override sets in config what text, YAML or JSON of a ProxyConfig, contains, field by field: a list or a message is
// replaced as a whole, and only proxyMetadata and proxyHeaders are merged, as in Istio. It returns the fields that are not
// known: all of the ProxyConfig itself, and the first one within its messages.
func override(config *meshv1.ProxyConfig, text string) (unknown []string, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	tree, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("want YAML or JSON of Istio's ProxyConfig: %s", strings.TrimPrefix(oneLine(err), "yaml: "))
	}
	var written map[string]json.RawMessage
	if err := json.Unmarshal(tree, &written); err != nil || written == nil {
		return nil, errors.New("want a mapping, such as {concurrency: 2}")
	}
	former := proto.CloneOf(config)
	next := &meshv1.ProxyConfig{}
	to, from := config.ProtoReflect(), next.ProtoReflect()
	for _, name := range slices.Sorted(maps.Keys(written)) {
		if field(to.Descriptor(), name) == nil {
			unknown = append(unknown, fmt.Sprintf("unknown field %q", name))
			delete(written, name)
		}
	}
	if tree, err = json.Marshal(written); err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(tree, next); err != nil {
		if within := unknownField.FindString(err.Error()); within != "" {
			unknown = append(unknown, within)
			next.Reset()
			err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(tree, next)
		}
		if err != nil {
			return nil, fmt.Errorf("want Istio's ProxyConfig: %s", oneLine(err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(written)) {
		fd := field(to.Descriptor(), name)
		switch {
		case string(written[name]) == "null":
		case from.Has(fd):
			to.Set(fd, from.Get(fd))
		case fd.ContainingOneof() == nil || to.Has(fd):
			to.Clear(fd) // it is set to its zero value
		}
	}
	mergeFormer(config, former)
	return unknown, nil
}

// field returns the field with a name in JSON, nil for none.
func field(message protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := message.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return message.Fields().ByName(protoreflect.Name(name))
}

// mergeFormer adds to config the entries of maps and messages that Istio merges, from its former value.
func mergeFormer(config, former *meshv1.ProxyConfig) {
	if len(former.GetProxyMetadata()) > 0 {
		all := maps.Clone(former.GetProxyMetadata())
		maps.Copy(all, config.GetProxyMetadata())
		config.ProxyMetadata = all
	}
	if former.GetProxyHeaders() != nil && config.GetProxyHeaders() != nil {
		to := config.GetProxyHeaders().ProtoReflect()
		former.GetProxyHeaders().ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if fd.Message() != nil && !fd.IsList() && !to.Has(fd) {
				to.Set(fd, v)
			}
			return true
		})
	}
}

// oneLine returns the text of an error in one line. protojson separates with a non-breaking space at random.
func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")), " ")
}

// completeConfig adds to the ProxyConfig what the environment and annotations say.
func (p *Proxy) completeConfig() error {
	if text := variable(p.identity.Environ, "ISTIO_CPU_LIMIT"); p.config.GetConcurrency() == nil && text != "" {
		cpus, err := strconv.ParseInt(text, 10, 32)
		if err != nil || cpus < 0 {
			return fmt.Errorf("variable ISTIO_CPU_LIMIT: %q is not a whole number of CPUs", text)
		}
		if cpus > 0 {
			p.config.Concurrency = wrapperspb.Int32(int32(cpus))
		}
	}
	if text := p.annotations["status.sidecar.istio.io/port"]; text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return fmt.Errorf("annotation status.sidecar.istio.io/port: %q is not a port", text)
		}
		p.config.StatusPort = int32(port)
	}
	return nil
}

// honoured are the fields of a ProxyConfig that have their effect: here, in `holdfast run`, in istiod, which reads them in
// the metadata of the node, or already in the webhook.
var honoured = []string{
	"concurrency", "drainDuration", "terminationDrainDuration", "proxyAdminPort", "statsdUdpAddress", "extraStatTags", "proxyStatsMatcher",
	"proxyMetadata", "runtimeValues", "serviceCluster", "tracingServiceName", "discoveryAddress", "statusPort", "controlPlaneAuthPolicy",
	"interceptionMode", "gatewayTopology", "meshId", "proxyHeaders", "connectionSettings", "holdApplicationUntilProxyStarts", "image",
	"readinessProbe",
}

// insteadOf says what to use for some fields that have no effect.
var insteadOf = map[string]string{
	"tracing":                    "name a provider in Istio's Telemetry API, or use an overlay",
	"zipkinAddress":              "name a provider in Istio's Telemetry API, or use an overlay",
	"envoyAccessLogService":      "name a provider in Istio's Telemetry API, or use an overlay",
	"envoyMetricsService":        "use an overlay with a stats sink and its cluster",
	"envoyMetricsServiceAddress": "use an overlay with a stats sink and its cluster",
	"customConfigFile":           "use --template or --overlay",
	"proxyBootstrapTemplatePath": "use --template or --overlay",
	"binaryPath":                 "name Envoy after -- of `holdfast run`",
	"configPath":                 "use --out",
	"caCertificatesPem":          "use --upstream-ca",
	"fileFlushInterval":          "give Envoy --file-flush-interval-msec",
	"fileFlushMinSizeKb":         "give Envoy --file-flush-min-size-kb",
}

// withoutEffect are annotations and variables that change pilot-agent's bootstrap only.
var withoutEffect = struct{ annotations, variables []string }{
	[]string{"sidecar.istio.io/bootstrapOverride", "sidecar.istio.io/statsEvictionInterval"},
	[]string{
		"ENVOY_SECURE_MERGED_METRICS_PORT", "ENVOY_SECURE_METRICS_PORT", "ISTIO_BOOTSTRAP", "ISTIO_BOOTSTRAP_OVERRIDE",
		"ISTIO_META_ENABLE_SELF_DISCOVERY", "ISTIO_META_LOAD_STATS_CONFIG_JSON",
	},
}

// ignored returns a warning for each field of a ProxyConfig that has no effect and not its default.
func ignored(config *meshv1.ProxyConfig) []string {
	standard := defaults().ProtoReflect()
	var warnings []string
	config.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := fd.JSONName()
		if slices.Contains(honoured, name) || standard.Has(fd) && v.Equal(standard.Get(fd)) {
			return true
		}
		warning := "ProxyConfig: " + name + " has no effect with holdfast"
		if instead := insteadOf[name]; instead != "" {
			warning += ": " + instead
		}
		warnings = append(warnings, warning)
		return true
	})
	slices.Sort(warnings)
	return warnings
}
