package xds

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Services returns how many services a list of endpoints or route configurations is of: endpoints with some addresses in
// common are of one service, such as those of a subset and of the whole, and so are those of clusters that have the names
// which Istio gives the ports and subsets of one host. With all addresses in common they need not be: a gateway between networks
// has one address for all services behind it. Every other resource is one service by itself, also if it is malformed.
func Services(list []*Resource) int {
	parent := make(map[string]string)
	root := func(key string) string {
		for parent[key] != key {
			key = parent[key]
		}
		return key
	}
	join := func(a, b string) {
		for _, key := range [...]string{a, b} {
			if _, known := parent[key]; !known {
				parent[key] = key
			}
		}
		parent[root(a)] = root(b)
	}
	// The kinds of keys must not be mixed up: strangers choose names.
	own := func(r *Resource) string { return "resource " + r.Name }
	sets := make(map[string]string)      // all addresses of endpoints, by name
	with := make(map[string][]*Resource) // by address
	for _, r := range list {
		join(own(r), own(r))
		if r.Type != EndpointType {
			continue
		}
		if host := istioHost(r.Name); host != "" {
			join(own(r), "host "+host)
		}
		var addrs []string
		endpointAddresses.walk(r.Body.GetValue(), func(addr string) {
			addrs = append(addrs, addr)
			with[addr] = append(with[addr], r)
		})
		slices.Sort(addrs)
		sets[r.Name] = fmt.Sprintf("%q", slices.Compact(addrs))
	}
	for _, list := range with {
		if slices.ContainsFunc(list, func(r *Resource) bool { return sets[r.Name] != sets[list[0].Name] }) {
			for _, r := range list {
				join(own(r), own(list[0]))
			}
		}
	}
	services := make(map[string]struct{})
	for _, r := range list {
		services[root(own(r))] = struct{}{}
	}
	return len(services)
}

// istioHost returns the host in the name that Istio gives a cluster: DIRECTION|PORT|SUBSET|HOST, or the same with "_." for a
// gateway between networks; "" for another name.
func istioHost(cluster string) string {
	for _, separator := range [...]string{"|", "_."} {
		if parts := strings.SplitN(cluster, separator, 4); len(parts) == 4 && (parts[0] == "outbound" || parts[0] == "inbound") {
			return parts[3]
		}
	}
	return ""
}

// endpointAddresses are the addresses of endpoints, in their wire form: Endpoint.address.
var endpointAddresses = func() *reference {
	endpoint := &reference{fields: map[protowire.Number]*reference{1: {values: []protowire.Number{1}}}} // of LbEndpoint
	return &reference{fields: map[protowire.Number]*reference{assignmentLocalities: {fields: map[protowire.Number]*reference{
		localityEndpoints: endpoint,
		localityList:      {fields: map[protowire.Number]*reference{listEndpoints: endpoint}},
	}}}}
}()
