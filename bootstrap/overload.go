package bootstrap

import (
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

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
	monitor := func(name string, config message) error {
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
