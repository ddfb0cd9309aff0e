package xds

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// reference describes where a message has certain values, such as names of clusters, in its wire form.
type reference struct {
	// fields are nested messages that may have such values; values are fields with such a value.
	fields map[protowire.Number]*reference
	values []protowire.Number
	// anys are the message types that may have such values, if the message is an Any.
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
	weightedClusters = &reference{fields: map[protowire.Number]*reference{1: {values: []protowire.Number{1}}}}
	mirrorPolicy     = &reference{values: []protowire.Number{1}}
	routeAction      = &reference{
		values: []protowire.Number{1},
		fields: map[protowire.Number]*reference{3: weightedClusters, 30: mirrorPolicy},
	}
	virtualHost = &reference{fields: map[protowire.Number]*reference{
		3:  {fields: map[protowire.Number]*reference{2: routeAction}},
		22: mirrorPolicy,
	}}
	routeConfiguration = &reference{fields: map[protowire.Number]*reference{2: virtualHost, 13: mirrorPolicy}}

	httpManager = &reference{fields: map[protowire.Number]*reference{4: routeConfiguration}}
	tcpProxy    = &reference{
		values: []protowire.Number{2},
		fields: map[protowire.Number]*reference{10: weightedClusters},
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

// conflictKeys are the values that no other resource of the type may have: Envoy NACKs a second
// listener with one address or additional address, and a second scope with one key.
var conflictKeys = map[string]*reference{
	ListenerType: {
		values: []protowire.Number{2},
		fields: map[protowire.Number]*reference{33: {values: []protowire.Number{1}}},
	},
	ScopedRouteType: {values: []protowire.Number{3}},
}

// ConflictKeys returns the address of a listener, or the key of a scope, as strings: two resources
// conflict if they have one in common. It returns nil for other types. It stops where the body is
// malformed.
func ConflictKeys(r *Resource) (keys []string) {
	conflictKeys[r.Type].walk(r.Body.GetValue(), func(key string) { keys = append(keys, key) })
	return keys
}

// LeadsToClusters yields the names of the clusters to which a route configuration, a virtual host
// or a listener sends requests, in their order in the body and possibly several times. It yields
// nothing for other types. It stops where the body is malformed.
func LeadsToClusters(r *Resource, yield func(cluster string)) {
	references[r.Type].walk(r.Body.GetValue(), yield)
}

// walk yields the values that ref describes; none if ref is nil.
func (ref *reference) walk(msg []byte, yield func(string)) {
	if ref == nil {
		return
	}
	var url, value []byte
	_ = scanFields(msg, func(num protowire.Number, typ protowire.Type, val []byte) error {
		switch next := ref.fields[num]; {
		case typ != protowire.BytesType:
		case next != nil:
			next.walk(val, yield)
		case slices.Contains(ref.values, num) && len(val) > 0:
			yield(string(val))
		case num == anyTypeURL:
			url = val
		case num == anyValue:
			value = val
		}
		return nil
	})
	ref.anys[string(url)].walk(value, yield)
}
