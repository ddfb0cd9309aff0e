package istio

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// Endpoints returns the listeners for the kubelet and for Prometheus as pilot-agent opens them.
func (p *Proxy) Endpoints() (bootstrap.Endpoints, error) {
	host := ""
	if variable(p.identity.Environ, "METRICS_LOCALHOST_ACCESS_ONLY") == "true" {
		host = "127.0.0.1"
		if p.identity.Pod.Family == bootstrap.V6 {
			host = "::1"
		}
	}
	ports := map[string]int{"ENVOY_STATUS_PORT": ReadyPort, "ENVOY_PROMETHEUS_PORT": StatsPort}
	for name := range ports {
		if text := variable(p.identity.Environ, name); text != "" {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil || port == 0 {
				return bootstrap.Endpoints{}, fmt.Errorf("istio: variable %s: %q is not a port from 1 to 65535", name, text)
			}
			ports[name] = int(port)
		}
	}
	return bootstrap.Endpoints{
		Ready: net.JoinHostPort("", strconv.Itoa(ports["ENVOY_STATUS_PORT"])),
		Stats: net.JoinHostPort(host, strconv.Itoa(ports["ENVOY_PROMETHEUS_PORT"])),
	}, nil
}

// maxConnections is the key of the proxyMetadata that limits Envoy's connections; the older runtime key has the same meaning.
const (
	maxConnections        = "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"
	maxConnectionsRuntime = "overload.global_downstream_max_connections"
)

// Configure returns cfg and args with what the ProxyConfig and the annotations of the pod set. What they have already stays:
// it comes from flags.
func (p *Proxy) Configure(cfg bootstrap.Config, args bootstrap.EnvoyArgs) (bootstrap.Config, bootstrap.EnvoyArgs, error) {
	for field, d := range map[string]*durationpb.Duration{"drainDuration": p.config.GetDrainDuration(), "terminationDrainDuration": p.config.GetTerminationDrainDuration()} {
		if d.AsDuration() < 0 {
			return cfg, args, fmt.Errorf("istio: ProxyConfig: %s is %s: want 0s or more", field, d.AsDuration())
		}
	}
	if port := p.config.GetProxyAdminPort(); cfg.Admin == "" && port != 0 {
		host := "127.0.0.1"
		if cfg.Family == bootstrap.V6 {
			host = "::1"
		}
		cfg.Admin = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	if n := p.config.GetConcurrency().GetValue(); args.Concurrency == 0 && n > 0 {
		args.Concurrency = int(n)
	}
	if drain := p.config.GetDrainDuration().AsDuration(); args.DrainTime == 0 && drain != defaults().GetDrainDuration().AsDuration() {
		args.DrainTime = drain
	}
	if cfg.Overload.MaxConnections == 0 {
		limit := p.config.GetProxyMetadata()[maxConnections]
		if limit == "" {
			limit = p.config.GetRuntimeValues()[maxConnectionsRuntime]
		}
		if limit != "" {
			n, err := strconv.ParseUint(limit, 10, 31)
			if err != nil {
				return cfg, args, fmt.Errorf("istio: ProxyConfig: %q is not a maximum number of connections", limit)
			}
			cfg.Overload.MaxConnections = uint32(n)
		}
	}
	cfg.Runtime.Values = p.runtime(cfg.Runtime.Values)
	return cfg, args, p.configureStats(&cfg.Stats)
}

// TerminationDrain returns how long Envoy drains at most before it ends, which may be 0, and whether something but Istio's
// default says so.
func (p *Proxy) TerminationDrain() (drain time.Duration, given bool) {
	drain = p.config.GetTerminationDrainDuration().AsDuration()
	return drain, drain != defaults().GetTerminationDrainDuration().AsDuration()
}

// runtime returns Istio's runtime values of which Envoy 1.40 knows the key, overridden by those of the ProxyConfig, overridden
// by given ones.
func (p *Proxy) runtime(given map[string]any) map[string]any {
	values := map[string]any{
		"envoy.reloadable_features.http_reject_path_with_fragment":       false,
		"envoy.reloadable_features.fixed_heap_use_allocated":             true,
		"envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update": false, // envoyproxy/envoy#45212
	}
	if variable(p.identity.Environ, "COMPLIANCE_POLICY") == "fips-140-2" {
		values["envoy.reloadable_features.google_grpc_disable_tls_13"] = true
	}
	for key, value := range p.config.GetRuntimeValues() {
		switch value {
		case "": // Envoy's own default
			delete(values, key)
		case "true", "false": // Envoy rejects a text for a feature
			values[key] = value == "true"
		default:
			values[key] = value
		}
	}
	delete(values, maxConnectionsRuntime) // it is a resource monitor now
	maps.Copy(values, given)
	return values
}

// statsTags are the tags that Istio's names of stats are made for: a cluster and a listener end their names with a semicolon.
var statsTags = []bootstrap.Tag{
	{Name: "cluster_name", Regex: `^cluster(\.(.+);)`},
	{Name: "http_conn_manager_prefix", Regex: `^http\.(((?:[_.[:digit:]\w]*|[_\[\]aAbBcCdDeEfF[:digit:]\w\:]*));\.)`},
	{Name: "thread_name", Regex: `^server(\.(.+))\.watchdog`},
	{Name: "tcp_prefix", Regex: `^tcp\.((.*?)\.)\w+?$`},
	{Name: "response_code", Regex: `_rq(_(\d{3}))$`},
	{Name: "response_code_class", Regex: `_rq(_(\dxx))$`},
	{Name: "http_conn_manager_listener_prefix", Regex: `^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{Name: "listener_address", Regex: `^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{Name: "mongo_prefix", Regex: `^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$`},
	{Name: "cache", Regex: `(cache\.(.+?)\.)`},
	{Name: "component", Regex: `(component\.(.+?)\.)`},
	{Name: "tag", Regex: `(tag\.(.+?);\.)`},
	{Name: "wasm_filter", Regex: `(wasm_filter\.(.+?)\.)`},
	{Name: "authz_enforce_result", Regex: `rbac(\.(allowed|denied))`},
	{Name: "authz_dry_run_action", Regex: `(\.istio_dry_run_(allow|deny)_)`},
	{Name: "authz_dry_run_result", Regex: `(\.shadow_(allowed|denied))`},
}

// statsIncluded are the stats that every proxy of Istio has, besides bootstrap.RequiredStats.
var statsIncluded = []bootstrap.Match{
	{Kind: bootstrap.Prefix, Value: "reporter="}, {Kind: bootstrap.Prefix, Value: "component"}, {Kind: bootstrap.Prefix, Value: "istio"},
	{Kind: bootstrap.Prefix, Value: "wasm"}, {Kind: bootstrap.Prefix, Value: "cluster." + SecretsCluster},
	{Kind: bootstrap.Suffix, Value: "rbac.allowed"}, {Kind: bootstrap.Suffix, Value: "rbac.denied"},
	{Kind: bootstrap.Suffix, Value: "shadow_allowed"}, {Kind: bootstrap.Suffix, Value: "shadow_denied"},
	{Kind: bootstrap.Regex, Value: `vhost\..*\.route\..*`},
}

// configureStats adds the tags, the inclusion and the buckets of Istio. Inclusion and exclusion by flags replace Istio's.
func (p *Proxy) configureStats(stats *bootstrap.Stats) error {
	stats.NoDefaultTags = true
	tags := slices.Clone(statsTags)
	for _, name := range slices.Concat(p.config.GetExtraStatTags(), split(p.annotations["sidecar.istio.io/extraStatTags"])) {
		tag := bootstrap.Tag{Name: name, Regex: `(` + regexp.QuoteMeta(name) + `=\.=(.*?);\.;)`}
		if name != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	stats.Tags = append(tags, stats.Tags...)
	if len(stats.Include) == 0 && len(stats.Exclude) == 0 {
		stats.Include = p.included()
	}
	if text := p.annotations["sidecar.istio.io/statsHistogramBuckets"]; text != "" && len(stats.Buckets) == 0 {
		var buckets map[string][]float64
		if err := json.Unmarshal([]byte(text), &buckets); err != nil {
			return fmt.Errorf(`istio: annotation sidecar.istio.io/statsHistogramBuckets: want JSON such as {"istiocustom": [1, 5, 10]}`)
		}
		for _, prefix := range slices.Sorted(maps.Keys(buckets)) {
			stats.Buckets = append(stats.Buckets, bootstrap.Buckets{Match: bootstrap.Match{Kind: bootstrap.Prefix, Value: prefix}, Bounds: buckets[prefix]})
		}
	}
	if text := p.annotations["sidecar.istio.io/statsFlushInterval"]; text != "" && stats.FlushInterval == 0 {
		interval, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("istio: annotation sidecar.istio.io/statsFlushInterval: %q: want a duration, such as 10s", text)
		}
		stats.FlushInterval = interval
	}
	return nil
}

// included returns the stats of the annotations or else of the ProxyConfig, and those that every proxy has.
func (p *Proxy) included() []bootstrap.Match {
	all := slices.Clone(statsIncluded)
	matcher := p.config.GetProxyStatsMatcher()
	for _, from := range []struct {
		kind       bootstrap.MatchKind
		annotation string
		config     []string
	}{
		{bootstrap.Prefix, "sidecar.istio.io/statsInclusionPrefixes", matcher.GetInclusionPrefixes()},
		{bootstrap.Suffix, "sidecar.istio.io/statsInclusionSuffixes", matcher.GetInclusionSuffixes()},
		{bootstrap.Regex, "sidecar.istio.io/statsInclusionRegexps", matcher.GetInclusionRegexps()},
	} {
		values := from.config
		if text := p.annotations[from.annotation]; text != "" {
			values = split(text)
		}
		for _, value := range values {
			for _, value := range p.withPodIP(value) {
				match := bootstrap.Match{Kind: from.kind, Value: value}
				if value != "" && !slices.Contains(all, match) {
					all = append(all, match)
				}
			}
		}
	}
	return all
}

// withPodIP returns the texts that stand for one with the placeholder {pod_ip}: one for each address.
func (p *Proxy) withPodIP(text string) []string {
	if !strings.Contains(text, "{pod_ip}") {
		return []string{text}
	}
	var all []string
	for _, ip := range p.identity.Pod.IPs {
		all = append(all, strings.ReplaceAll(text, "{pod_ip}", ip.Unmap().String()))
	}
	return all
}

// split returns the parts of a text with commas, without empty ones.
func split(text string) []string {
	return slices.DeleteFunc(strings.Split(text, ","), func(part string) bool { return part == "" })
}
