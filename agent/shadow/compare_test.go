package shadow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// dump is the config_dump of an Envoy 1.40 that has the resources of testdata. Its edit, which may be nil, changes the text.
func dump(t *testing.T, edit func(string) string) *Dump {
	t.Helper()
	text := string(read(t, "dump.json"))
	if edit != nil {
		before := text
		if text = edit(text); text == before {
			t.Fatal("the edit changes nothing")
		}
	}
	d, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// served is what a control plane with the resources of testdata sends, of which all is known.
func served(t *testing.T) Served {
	t.Helper()
	out := Served{
		Resources: make(map[xds.Key]*xds.Resource), NotFound: make(map[xds.Key]bool),
		Complete: map[string]bool{xds.ClusterType: true, xds.ListenerType: true},
	}
	for _, name := range []string{"resources.yaml", "secrets.json"} {
		var file struct{ Resources []any }
		if err := yaml.Unmarshal(read(t, name), &file); err != nil {
			t.Fatal(err)
		}
		for _, tree := range file.Resources {
			text, err := json.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			body := &anypb.Any{}
			if err := (protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal(text, body); err != nil {
				t.Fatal(err)
			}
			out.put(t, body)
		}
	}
	return out
}

func (s Served) put(t *testing.T, body *anypb.Any) {
	t.Helper()
	r, err := xds.FromAny(body.GetTypeUrl(), "", body, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s.Resources[xds.Key{Type: r.Type, Name: r.Name}] = r
}

// change changes a resource that is served.
func change[M proto.Message](t *testing.T, s Served, key xds.Key, edit func(M)) {
	t.Helper()
	m, err := envoytypes.Unpack(s.Resources[key].Body)
	if err != nil {
		t.Fatal(err)
	}
	edit(m.(M))
	body, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, body)
}

func TestADumpSaysWhoEnvoyIsAndWhatItAsksFor(t *testing.T) {
	d := dump(t, nil)
	if d.Node.GetId() != "n1" || d.Node.GetUserAgentName() != "envoy" {
		t.Errorf("the node is %v", d.Node)
	}
	if d.ADS != "xds (127.0.0.1:18000)" {
		t.Errorf("ADS leads to %q", d.ADS)
	}
	var asks []string
	for url := range d.Wildcards {
		asks = append(asks, xds.Short(url)+" *")
	}
	for key := range d.Names {
		asks = append(asks, xds.Short(key.Type)+" "+key.Name)
	}
	slices.Sort(asks)
	if got, want := strings.Join(asks, ", "), "CDS *, EDS web-eds, LDS *, RDS r, SDS cert, SDS roots"; got != want {
		t.Errorf("Envoy asks for %s, want %s", got, want)
	}
	if len(d.Held) != 6 || len(d.Elsewhere) != 0 {
		t.Errorf("it has %v, and %v from elsewhere", d.Held, d.Elsewhere)
	}
}

func TestWhatEnvoyHasFromElsewhereIsNotCompared(t *testing.T) {
	const ads = `"ads": {}`
	other := `"api_config_source": {"api_type": "GRPC", "grpc_services": [{"envoy_grpc": {"cluster_name": "sds-grpc"}}]}`
	d := dump(t, func(s string) string {
		at := strings.Index(s, `"name": "cert"`)
		return s[:at] + strings.Replace(s[at:], ads, other, 1)
	})
	if d.Names[xds.Key{Type: xds.SecretType, Name: "cert"}] || d.Elsewhere[xds.SecretType] != 1 {
		t.Errorf("it asks for %v, and has %v from elsewhere", d.Names, d.Elsewhere)
	}
	d = dump(t, func(s string) string {
		return strings.Replace(s, `"cds_config": {
      "ads": {}`, `"cds_config": {
      "path_config_source": {"path": "/cds.yaml"}`, 1)
	})
	if d.Wildcards[xds.ClusterType] || d.Elsewhere[xds.ClusterType] != 1 {
		t.Errorf("wildcards %v, from elsewhere %v", d.Wildcards, d.Elsewhere)
	}
	// The same control plane, on a stream of its own.
	same := strings.Replace(other, "sds-grpc", "xds", 1)
	d = dump(t, func(s string) string {
		at := strings.Index(s, `"name": "cert"`)
		return s[:at] + strings.Replace(s[at:], ads, same, 1)
	})
	if !d.Names[xds.Key{Type: xds.SecretType, Name: "cert"}] {
		t.Errorf("it asks for %v", d.Names)
	}
}

// An Envoy may have streams of its own for clusters and listeners, to one control plane.
func TestAnEnvoyWithoutADSIsComparedToo(t *testing.T) {
	source := func(cluster string) string {
		return `"api_config_source": {"api_type": "GRPC", "grpc_services": [{"envoy_grpc": {"cluster_name": "` + cluster + `"}}]}`
	}
	d := dump(t, func(s string) string {
		s = strings.ReplaceAll(s, `"ads": {}`, source("xds"))
		return strings.Replace(s, `"ads_config"`, `"deprecated_v1"`, 1)
	})
	if d.ADS != "xds (127.0.0.1:18000)" || !d.Wildcards[xds.ListenerType] || !d.Names[xds.Key{Type: xds.RouteType, Name: "r"}] || len(d.Held) != 6 {
		t.Errorf("%+v", d)
	}
	text := strings.ReplaceAll(string(read(t, "dump.json")), `"ads": {}`, `"path_config_source": {"path": "/x.yaml"}`)
	if _, err := Parse([]byte(strings.Replace(text, `"ads_config"`, `"deprecated_v1"`, 1))); err == nil || !strings.Contains(err.Error(), "nothing to compare") {
		t.Errorf("of an Envoy without a control plane: %v", err)
	}
}

// Envoy takes the weight of endpoints only if they have a locality, if only an empty one.
func TestAWeightWithoutALocalityIsNone(t *testing.T) {
	for _, c := range []struct {
		locality *corev3.Locality
		want     uint32
	}{{nil, 0}, {&corev3.Locality{}, 3}} {
		a := asDumped(&endpointv3.ClusterLoadAssignment{Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality: c.locality, LoadBalancingWeight: wrapperspb.UInt32(3), LbEndpoints: []*endpointv3.LbEndpoint{{}},
		}}})
		if got := a.GetEndpoints()[0].GetLoadBalancingWeight().GetValue(); got != c.want {
			t.Errorf("locality %v: the weight is %d, want %d", c.locality, got, c.want)
		}
	}
}

func TestRubbishIsNoDump(t *testing.T) {
	for text, want := range map[string]string{
		"<html>": "invalid character", "{}": "no bootstrap", `{"configs": 3}`: "config_dump",
		`{"configs": [{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "c"}]}`: "no bootstrap",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

var (
	cluster   = xds.Key{Type: xds.ClusterType, Name: "web"}
	route     = xds.Key{Type: xds.RouteType, Name: "r"}
	endpoints = xds.Key{Type: xds.EndpointType, Name: "web-eds"}
	secret    = xds.Key{Type: xds.SecretType, Name: "cert"}
)

func TestWhatDiffersIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		dump   func(string) string
		served func(*testing.T, Served)
		want   string // the differences; "" for none
	}{
		"nothing": {},
		"a changed cluster": {served: func(t *testing.T, s Served) {
			change(t, s, cluster, func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(2 * time.Second) })
		}, want: "CDS web content connect_timeout"},
		"a changed route": {served: func(t *testing.T, s Served) {
			change(t, s, route, func(r *routev3.RouteConfiguration) { r.VirtualHosts[0].Domains = []string{"*", "a"} })
		}, want: "RDS r content virtual_hosts[0].domains[1]"},
		"a cluster that is not there": {served: func(_ *testing.T, s Served) { delete(s.Resources, cluster) }, want: "CDS web missing"},
		"a cluster of which nothing is known": {served: func(_ *testing.T, s Served) {
			delete(s.Resources, cluster)
			s.Complete[xds.ClusterType] = false
		}, want: "CDS web unanswered"},
		"a route that is not answered": {served: func(_ *testing.T, s Served) { delete(s.Resources, route) }, want: "RDS r unanswered"},
		"a route that does not exist": {served: func(_ *testing.T, s Served) {
			delete(s.Resources, route)
			s.NotFound[route] = true
		}, want: "RDS r missing"},
		"one cluster more": {served: func(t *testing.T, s Served) {
			s.put(t, packed(t, &clusterv3.Cluster{Name: "more"}))
		}, want: "CDS more extra"},
		"one listener more": {served: func(t *testing.T, s Served) {
			s.put(t, packed(t, &listenerv3.Listener{Name: "other"}))
		}, want: "LDS other extra"},
		"another weight": {served: func(t *testing.T, s Served) {
			change(t, s, endpoints, func(a *endpointv3.ClusterLoadAssignment) {
				a.Endpoints[0].LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(7)
			})
		}, want: "EDS web-eds content endpoints[0].lb_endpoints[0].load_balancing_weight"},
		"an endpoint less": {served: func(t *testing.T, s Served) {
			change(t, s, endpoints, func(a *endpointv3.ClusterLoadAssignment) { a.Endpoints = a.Endpoints[:1] })
		}, want: "EDS web-eds content endpoints[1]"},
		"the order of endpoints": {served: func(t *testing.T, s Served) {
			change(t, s, endpoints, func(a *endpointv3.ClusterLoadAssignment) { slices.Reverse(a.Endpoints[1].LbEndpoints) })
		}},
		"an endpoint that was healthy": {served: func(t *testing.T, s Served) {
			change(t, s, endpoints, func(a *endpointv3.ClusterLoadAssignment) {
				a.Endpoints[0].LbEndpoints[1].HealthStatus = corev3.HealthStatus_HEALTHY
			})
		}, want: "EDS web-eds content endpoints[0].lb_endpoints[1].health_status"},
		"an endpoint that Envoy's own checks find unhealthy": {dump: func(s string) string {
			return strings.Replace(s, `"type": "EDS"`, `"type": "EDS", "health_checks": [{"tcp_health_check": {}}]`, 1)
		}, served: func(t *testing.T, s Served) {
			change(t, s, cluster, func(c *clusterv3.Cluster) {
				c.HealthChecks = []*corev3.HealthCheck{{HealthChecker: &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{}}}}
			})
			change(t, s, endpoints, func(a *endpointv3.ClusterLoadAssignment) {
				a.Endpoints[0].LbEndpoints[1].HealthStatus = corev3.HealthStatus_HEALTHY
			})
		}},
		"an endpoint that Envoy keeps while it passes its checks": {dump: func(s string) string {
			return strings.Replace(s, `"type": "EDS"`, `"type": "EDS", "outlier_detection": {}`, 1)
		}, served: func(t *testing.T, s Served) {
			change(t, s, cluster, func(c *clusterv3.Cluster) { c.OutlierDetection = &clusterv3.OutlierDetection{} })
			change(t, s, endpoints, func(a *endpointv3.ClusterLoadAssignment) { a.Endpoints = a.Endpoints[:1] })
		}},
		"another key": {served: func(t *testing.T, s Served) { // which Envoy does not show
			change(t, s, secret, func(m proto.Message) {
				text := strings.Replace(protojson.Format(m), "a key, which", "another key, which", 1)
				if err := protojson.Unmarshal([]byte(text), m); err != nil {
					t.Fatal(err)
				}
			})
		}},
		"another chain": {served: func(t *testing.T, s Served) {
			change(t, s, secret, func(m proto.Message) {
				text := strings.Replace(protojson.Format(m), "BEGIN CERTIFICATE", "BEGIN  CERTIFICATE", 1)
				if err := protojson.Unmarshal([]byte(text), m); err != nil {
					t.Fatal(err)
				}
			})
		}, want: "SDS cert content tls_certificate.certificate_chain.inline_string"},
		"a cluster that Envoy NACKs": {dump: func(s string) string {
			return strings.Replace(s, `"dynamic_active_clusters": [`, `"dynamic_active_clusters": [{"error_state": {"details": "no",
				"failed_configuration": {"@type": "`+xds.ClusterType+`", "name": "web", "connect_timeout": "-1s", "type": "EDS",
				"eds_cluster_config": {"eds_config": {"ads": {}, "resource_api_version": "V3"}, "service_name": "web-eds"}}}},`, 1)
		}, served: func(t *testing.T, s Served) {
			change(t, s, cluster, func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(-time.Second) })
		}, want: "CDS web NACK no"},
		"types that nobody knows, the same": {dump: func(s string) string {
			return strings.Replace(s, `"name": "web",`, `"name": "web", "typed_extension_protocol_options": {"x": {"@type": "type.googleapis.com/acme.v1.Own", "a": 1}},`, 1)
		}, served: func(t *testing.T, s Served) {
			change(t, s, cluster, func(c *clusterv3.Cluster) {
				c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"x": {TypeUrl: "type.googleapis.com/acme.v1.Own", Value: []byte{8, 1}}}
			})
		}},
		"types that nobody knows, others": {dump: func(s string) string {
			return strings.Replace(s, `"name": "web",`, `"name": "web", "typed_extension_protocol_options": {"x": {"@type": "type.googleapis.com/acme.v1.Own", "a": 1}},`, 1)
		}, served: func(t *testing.T, s Served) {
			change(t, s, cluster, func(c *clusterv3.Cluster) {
				c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"x": {TypeUrl: "type.googleapis.com/acme.v1.Other"}}
			})
		}, want: "CDS web content typed_extension_protocol_options.x.value"},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := dump(t, c.dump), served(t)
			if c.served != nil {
				c.served(t, s)
			}
			out := compare(d, s)
			var got []string
			for _, x := range out.differences {
				got = append(got, strings.TrimSpace(strings.Join([]string{x.Type, x.Name, string(x.Kind), x.Field}, " ")))
			}
			for _, x := range out.rejected {
				got = append(got, strings.Join([]string{x.Type, x.Name, "NACK", x.Reason}, " "))
			}
			if text := strings.Join(got, "; "); text != c.want {
				t.Errorf("found %q, want %q", text, c.want)
			}
		})
	}
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	body, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
