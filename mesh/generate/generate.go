// Package generate makes the Envoy resources of a proxy from a snapshot. Each subject has a file of
// its own: clusters, endpoints, listeners, routes, and what they have of TLS and of policies.
//
// It promises that the same input gives the same bytes (mesh.md M4), and that it reads the proxy
// only through a proxy.View, so that proxies share what they would get alike (M5). The names of
// resources are Istio's, so that its tools read them. A Generator keeps what classes of proxies have in common. It may be used by
// several goroutines at once if its Endpoints may be.
package generate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Endpoints returns the endpoints of a service, in stable order, and the SPIFFE ids that they have,
// sorted. service.Shards does.
type Endpoints interface {
	Endpoints(key service.Key) []*service.Endpoint
	ServiceAccounts(key service.Key) []string
}

// Generator makes resources from one snapshot.
type Generator struct {
	snap      *push.Snapshot
	endpoints Endpoints
	pieces    *pieces
	// meant is what a piece is of while it is made; nil otherwise.
	meant *Target
	// observed is set while something is made for a class of proxies.
	*observed
}

// New returns the generator of a snapshot.
func New(snap *push.Snapshot, endpoints Endpoints) *Generator {
	return &Generator{snap: snap, endpoints: endpoints, pieces: &pieces{}}
}

// ruleOf returns the rule that a proxy applies to a service; nil for none. A piece has it in its key, and does not read it of the proxy.
func (g *Generator) ruleOf(v *proxy.View, svc *service.Service) *push.DestinationRule {
	if g.meant != nil && g.meant.service == svc {
		return g.meant.rule
	}
	return g.snap.DestinationRule(v, svc)
}

// Set is resources of one type by name.
type Set map[string]*xds.Resource

// add makes a resource of a message and adds it.
func (s Set) add(typeURL, name string, m proto.Message) { s[name] = resource(typeURL, name, m) }

// resource makes a resource. The bytes of a message are the same for equal messages.
func resource(typeURL, name string, m proto.Message) *xds.Resource {
	r, err := xds.FromWrapper(typeURL, &discoveryv3.Resource{Name: name, Resource: pack(m)}, time.Time{})
	if err != nil {
		panic(fmt.Sprintf("generate: %s %q: %v", xds.Short(typeURL), name, err)) // the message is our own
	}
	return r
}

// pack returns a message as an Any with stable bytes.
func pack(m proto.Message) *anypb.Any {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("generate: %s: %v", m.ProtoReflect().Descriptor().FullName(), err)) // invalid UTF-8
	}
	return &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()), Value: value}
}

// The names of clusters that are there without a service.
const (
	blackHole          = "BlackHoleCluster"
	passthrough        = "PassthroughCluster"
	inboundPassthrough = "InboundPassthroughCluster"
)

// ClusterName returns the name of an outbound cluster.
func ClusterName(port uint32, subset string, host service.Hostname) string {
	return "outbound|" + strconv.Itoa(int(port)) + "|" + subset + "|" + string(host)
}

// ParseClusterName returns what an outbound cluster is of, or a cluster that is named by an SNI of mesh
// TLS; ok is false for other names.
func ParseClusterName(name string) (port uint32, subset string, host service.Hostname, ok bool) {
	separator := "|"
	if isServerName(name) {
		separator = "_."
	}
	direction, rest, _ := strings.Cut(name, separator)
	number, rest, _ := strings.Cut(rest, separator)
	subset, text, found := strings.Cut(rest, separator)
	if !found || direction != "outbound" {
		return 0, "", "", false
	}
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), subset, service.Hostname(text), err == nil
}

// inboundClusterName returns the name of the cluster of a port of the workload.
func inboundClusterName(port uint32) string { return "inbound|" + strconv.Itoa(int(port)) + "||" }

// serverName returns the SNI by which a cluster is named in mesh TLS.
func serverName(port uint32, subset string, host service.Hostname) string {
	return "outbound_." + strconv.Itoa(int(port)) + "_." + subset + "_." + string(host)
}

// isServerName reports whether a name is one that serverName returns.
func isServerName(name string) bool { return strings.HasPrefix(name, "outbound_.") }

func u32(n uint32) *wrapperspb.UInt32Value         { return wrapperspb.UInt32(n) }
func u64(n uint64) *wrapperspb.UInt64Value         { return wrapperspb.UInt64(n) }
func truth(b bool) *wrapperspb.BoolValue           { return wrapperspb.Bool(b) }
func seconds(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
