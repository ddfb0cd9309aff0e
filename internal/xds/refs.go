package xds

import (
	"errors"
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

// routeNames are the names of the route configurations of RDS in listeners (Rds.route_config_name).
var routeNames = &reference{fields: func() map[protowire.Number]*reference {
	chain := &reference{fields: map[protowire.Number]*reference{3: {fields: map[protowire.Number]*reference{4: {anys: map[string]*reference{
		googleapis + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager": {fields: map[protowire.Number]*reference{3: {values: []protowire.Number{2}}}},
	}}}}}}
	return map[protowire.Number]*reference{3: chain, 25: chain}
}()}

// RouteNames yields the names of the route configurations that a listener gets by RDS, possibly several times. It stops where the body is
// malformed.
func RouteNames(listener *Resource, yield func(route string)) {
	if listener.Type == ListenerType {
		routeNames.walk(listener.Body.GetValue(), yield)
	}
}

// conflictKeys are the values that no other resource of the type may have: Envoy NACKs a second
// listener with one address or additional address, and a second scope with one key.
var conflictKeys = map[string]*reference{
	ListenerType: {
		values: []protowire.Number{2},
		fields: map[protowire.Number]*reference{33: {values: []protowire.Number{1}}},
	},
	ScopedRouteType: {values: []protowire.Number{3}},
}

// members are the names of the clusters that a cluster of another kind consists of, to be tried one after the other (packages
// envoy.extensions.clusters.aggregate.v3 and composite.v3).
var members = &reference{fields: map[protowire.Number]*reference{clusterCustomType: {fields: map[protowire.Number]*reference{2: {anys: map[string]*reference{
	googleapis + "envoy.extensions.clusters.aggregate.v3.ClusterConfig": {values: []protowire.Number{1}},
	googleapis + "envoy.extensions.clusters.composite.v3.ClusterConfig": {fields: map[protowire.Number]*reference{1: {values: []protowire.Number{1}}}},
}}}}}}

// Members yields the names of the clusters that an aggregate or composite cluster consists of; nothing for another one. It stops
// where the body is malformed.
func Members(cluster *Resource, yield func(cluster string)) {
	if cluster.Type == ClusterType && cluster.EDSName == "" {
		members.walk(cluster.Body.GetValue(), yield)
	}
}

// Field numbers of envoy.config.endpoint.v3.ClusterLoadAssignment and its LocalityLbEndpoints, of its LbEndpointList, and of
// envoy.config.route.v3.RouteConfiguration and VirtualHost.
const (
	assignmentLocalities = 2
	localityEndpoints    = 2
	localityList         = 7 // LbEndpointList, in a oneof with the next
	localityLEDS         = 8
	listEndpoints        = 1

	routeVirtualHosts = 2
	routeVHDS         = 9
	hostRoutes        = 3
	hostRequireTLS    = 4
	hostMatcher       = 21
)

// Empty reports whether endpoints have no endpoint of any health, and do not get them by LEDS, or a route configuration has no
// virtual host with a route, and does not get them by VHDS. It is false for other types, and if the body is malformed.
func Empty(r *Resource) bool {
	switch r.Type {
	case EndpointType:
		return !hasField(r.Body.GetValue(), func(num protowire.Number, locality []byte) bool {
			return num == assignmentLocalities && hasField(locality, func(num protowire.Number, val []byte) bool {
				return num == localityEndpoints || num == localityLEDS ||
					num == localityList && hasField(val, func(num protowire.Number, _ []byte) bool { return num == listEndpoints })
			})
		})
	case RouteType:
		return !hasField(r.Body.GetValue(), func(num protowire.Number, val []byte) bool {
			return num == routeVHDS || num == routeVirtualHosts && answers(val)
		})
	}
	return false
}

// answers reports whether a virtual host does anything with a request: it has routes, a tree of matchers, or demands TLS.
func answers(virtualHost []byte) bool {
	return scanFields(virtualHost, func(num protowire.Number, _ protowire.Type, _ []byte) error {
		if num == hostRoutes || num == hostRequireTLS || num == hostMatcher {
			return errFound
		}
		return nil
	}) != nil
}

// hasField reports whether a message has a field with a string or message of which is returns true, or is malformed before it.
func hasField(msg []byte, is func(num protowire.Number, val []byte) bool) bool {
	return scanFields(msg, func(num protowire.Number, typ protowire.Type, val []byte) error {
		if typ == protowire.BytesType && is(num, val) {
			return errFound
		}
		return nil
	}) != nil
}

var errFound = errors.New("found")

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
