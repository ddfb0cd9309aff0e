package xds

import "google.golang.org/protobuf/encoding/protowire"

// reference describes where a message refers to clusters, in its wire form.
type reference struct {
	// fields are nested messages that may refer to clusters; clusters are fields with the name of a
	// cluster.
	fields   map[protowire.Number]*reference
	clusters []protowire.Number
	// anys are the message types that may refer to clusters, if the message is an Any.
	anys map[string]*reference
}

// Fields of google.protobuf.Any.
const (
	anyTypeURL = 1
	anyValue   = 2
)

// The references to clusters in routes (packages envoy.config.route.v3, listener.v3 and the
// extensions http_connection_manager.v3 and tcp_proxy.v3). A route that chooses its cluster by a
// header, a plugin or a tree of matchers names none.
var (
	weightedClusters = &reference{fields: map[protowire.Number]*reference{1: {clusters: []protowire.Number{1}}}}
	mirrorPolicy     = &reference{clusters: []protowire.Number{1}}
	routeAction      = &reference{
		clusters: []protowire.Number{1},
		fields:   map[protowire.Number]*reference{3: weightedClusters, 30: mirrorPolicy},
	}
	virtualHost = &reference{fields: map[protowire.Number]*reference{
		3:  {fields: map[protowire.Number]*reference{2: routeAction}},
		22: mirrorPolicy,
	}}
	routeConfiguration = &reference{fields: map[protowire.Number]*reference{2: virtualHost, 13: mirrorPolicy}}

	httpManager = &reference{fields: map[protowire.Number]*reference{4: routeConfiguration}}
	tcpProxy    = &reference{
		clusters: []protowire.Number{2},
		fields:   map[protowire.Number]*reference{10: weightedClusters},
	}
	networkFilter = &reference{fields: map[protowire.Number]*reference{4: {anys: map[string]*reference{
		googleapis + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager": httpManager,
		googleapis + "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy":                            tcpProxy,
	}}}}
	filterChain = &reference{fields: map[protowire.Number]*reference{3: networkFilter}}

	references = map[string]*reference{
		RouteType:       routeConfiguration,
		ScopedRouteType: {fields: map[protowire.Number]*reference{5: routeConfiguration}},
		VirtualHostType: virtualHost,
		ListenerType:    {fields: map[protowire.Number]*reference{3: filterChain, 25: filterChain}},
	}
)

// LeadsToClusters yields the names of the clusters to which a route configuration, a virtual host
// or a listener sends requests, in their order in the body and possibly several times. It yields
// nothing for other types. It stops where the body is malformed.
func LeadsToClusters(r *Resource, yield func(cluster string)) {
	if ref := references[r.Type]; ref != nil {
		ref.walk(r.Body.GetValue(), yield)
	}
}

func (ref *reference) walk(msg []byte, yield func(string)) {
	if ref.anys != nil {
		ref.walkAny(msg, yield)
		return
	}
	_ = scanFields(msg, func(num protowire.Number, typ protowire.Type, val []byte) error {
		if typ != protowire.BytesType {
			return nil
		}
		if next := ref.fields[num]; next != nil {
			next.walk(val, yield)
			return nil
		}
		for _, field := range ref.clusters {
			if num == field && len(val) > 0 {
				yield(string(val))
			}
		}
		return nil
	})
}

// walkAny is walk for an Any.
func (ref *reference) walkAny(msg []byte, yield func(string)) {
	var url, value []byte
	_ = scanFields(msg, func(num protowire.Number, typ protowire.Type, val []byte) error {
		switch {
		case typ != protowire.BytesType:
		case num == anyTypeURL:
			url = val
		case num == anyValue:
			value = val
		}
		return nil
	})
	if next := ref.anys[string(url)]; next != nil {
		next.walk(value, yield)
	}
}
