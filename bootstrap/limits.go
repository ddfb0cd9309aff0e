package bootstrap

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

// HeapLimit returns a value for Overload.MaxHeap under a memory limit: 95 % of it, which leaves room for memory outside of
// the heap; 0 without a limit.
func HeapLimit(limits cgroup.Limits) uint64 {
	return limits.Memory - limits.Memory/20
}

// Concurrency returns the number of workers for an Envoy: the CPU limit rounded up; 0 without a limit, which selects
// Envoy's default of one for each CPU of the machine.
func Concurrency(limits cgroup.Limits) int {
	return int(math.Ceil(limits.CPU))
}

// EnvoyArgs are settings that a bootstrap cannot contain, and that belong on Envoy's command line.
type EnvoyArgs struct {
	// Bootstrap is the path of the bootstrap file.
	Bootstrap string
	// Concurrency is the number of workers; 0 selects Envoy's default.
	Concurrency int
	// DrainTime is how long Envoy drains, in whole seconds; 0 selects Envoy's default of 600 s.
	DrainTime time.Duration
	// LogLevel is one of LogLevels; empty selects Envoy's default, info.
	LogLevel string
}

// LogLevels returns Envoy's log levels; warn is another name of warning.
func LogLevels() []string {
	return []string{"trace", "debug", "info", "warning", "warn", "error", "critical", "off"}
}

// Args returns the arguments, without the name of the program. The log format is not included: it is in the bootstrap, and
// Envoy rejects it in both places.
func (e EnvoyArgs) Args() []string {
	args := []string{"-c", e.Bootstrap}
	if e.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(e.Concurrency))
	}
	if e.DrainTime > 0 {
		args = append(args, "--drain-time-s", strconv.FormatInt(int64(math.Ceil(e.DrainTime.Seconds())), 10))
	}
	if e.LogLevel != "" {
		args = append(args, "--log-level", e.LogLevel)
	}
	return args
}

// Text returns the arguments, one per line. An argument with a line break is an error.
func (e EnvoyArgs) Text() ([]byte, error) {
	var out strings.Builder
	for _, arg := range e.Args() {
		if strings.ContainsAny(arg, "\n\r\x00") {
			return nil, fmt.Errorf("bootstrap: argument %q has a line break", arg)
		}
		out.WriteString(arg + "\n")
	}
	return []byte(out.String()), nil
}

// Names of runtime layers that are not from RTDS.
const (
	staticLayer = "static"
	adminLayer  = "admin"
)

// regexSize is the runtime key of the largest program of a regular expression that Envoy accepts.
// Envoy's own limit of 100 rejects two UUIDs in a path, and with them the whole route configuration
// (protocol.md V15); defaultRegexSize is Istio's.
const (
	regexSize        = "re2.max_program_size.error_level"
	defaultRegexSize = 32768
)

func addRuntime(b *bootstrapv3.Bootstrap, cfg Config) error {
	r := cfg.Runtime
	static, err := exactStruct(r.Values)
	if err != nil {
		return fmt.Errorf("--runtime: %w", err)
	}
	runtime := &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{newStaticLayer(staticLayer, withDefaults(static))}}
	names := []string{staticLayer, adminLayer}
	for _, name := range r.RTDS {
		switch {
		case name == "" || !utf8.ValidString(name):
			return fmt.Errorf("--rtds-layer %q is empty or not valid UTF-8", name)
		case slices.Contains(names, name):
			return fmt.Errorf("--rtds-layer %q: a layer of this name exists already", name)
		}
		names = append(names, name)
		runtime.Layers = append(runtime.Layers, newRTDSLayer(name, cfg.XDS.source()))
	}
	runtime.Layers = append(runtime.Layers, newAdminLayer())
	b.LayeredRuntime = runtime
	return nil
}

// withDefaults adds the default values of the runtime that are not set.
func withDefaults(values *structpb.Struct) *structpb.Struct {
	all := map[string]*structpb.Value{regexSize: structpb.NewNumberValue(defaultRegexSize)}
	maps.Copy(all, values.GetFields())
	return &structpb.Struct{Fields: all}
}

func newStaticLayer(name string, values *structpb.Struct) *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{Name: name, LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: values}}
}

func newRTDSLayer(name string, source *corev3.ConfigSource) *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{
		Name:           name,
		LayerSpecifier: &bootstrapv3.RuntimeLayer_RtdsLayer_{RtdsLayer: &bootstrapv3.RuntimeLayer_RtdsLayer{Name: name, RtdsConfig: source}},
	}
}

// newAdminLayer returns the layer that POST /runtime_modify writes to.
func newAdminLayer() *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{Name: adminLayer, LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}}}
}

const (
	heapMonitor        = "envoy.resource_monitors.fixed_heap"
	connectionsMonitor = "envoy.resource_monitors.global_downstream_max_connections"

	// overloadRefresh is how often Envoy checks its usage: a heap that grows by 400 MB/s rises from 92 to 98 % of 2 GB
	// between two checks.
	overloadRefresh = 250 * time.Millisecond
)

func addOverload(b *bootstrapv3.Bootstrap, cfg Config) error {
	o := cfg.Overload
	if o.MaxHeap == 0 && o.MaxConnections == 0 {
		return nil
	}
	manager := &overloadv3.OverloadManager{RefreshInterval: durationpb.New(overloadRefresh)}
	monitor := func(name string, config proto.Message) error {
		packed, err := pack(config)
		if err != nil {
			return err
		}
		manager.ResourceMonitors = append(manager.ResourceMonitors, &overloadv3.ResourceMonitor{
			Name: name, ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: packed},
		})
		return nil
	}
	if o.MaxHeap != 0 {
		if err := monitor(heapMonitor, &heapv3.FixedHeapConfig{MaxHeapSizeBytes: o.MaxHeap}); err != nil {
			return err
		}
		manager.Actions = []*overloadv3.OverloadAction{
			heapTrigger("envoy.overload_actions.shrink_heap", 0.92),
			heapTrigger("envoy.overload_actions.stop_accepting_requests", 0.98),
		}
	}
	if o.MaxConnections != 0 { // this monitor needs no action: listeners check it before they accept
		config := &connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: int64(o.MaxConnections)}
		if err := monitor(connectionsMonitor, config); err != nil {
			return err
		}
	}
	b.OverloadManager = manager
	return nil
}

func heapTrigger(name string, from float64) *overloadv3.OverloadAction {
	return &overloadv3.OverloadAction{Name: name, Triggers: []*overloadv3.Trigger{{
		Name:         heapMonitor,
		TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: from}},
	}}}
}

// addLog sets the format of log lines. Envoy rejects it together with --log-format on its command line.
func addLog(b *bootstrapv3.Bootstrap, cfg Config) error {
	switch cfg.Log {
	case Text:
		return nil
	case JSONLine:
	default:
		return fmt.Errorf("log format %q is neither %s nor %s", cfg.Log, Text, JSONLine)
	}
	// %j is the message, escaped for JSON.
	format, err := structpb.NewStruct(map[string]any{
		"time": "%Y-%m-%dT%T.%e%z", "level": "%l", "thread": "%t", "logger": "%n", "source": "%g:%#", "msg": "%j",
	})
	if err != nil {
		return err
	}
	b.ApplicationLogConfig = &bootstrapv3.Bootstrap_ApplicationLogConfig{
		LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat{
			LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat_JsonFormat{JsonFormat: format},
		},
	}
	return nil
}
