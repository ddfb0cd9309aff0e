package model

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// kind is one of the types of the model, in push order.
type kind int

const (
	cds kind = iota
	eds
	lds
	rds
	kinds
)

var typeURLs = [kinds]string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType}

func (k kind) url() string    { return typeURLs[k] }
func (k kind) String() string { return xds.Short(typeURLs[k]) }

// full tells the types whose SotW responses are complete sets.
func (k kind) full() bool { return xds.FullState(typeURLs[k]) }

func kindOf(typeURL string) kind {
	for k, url := range typeURLs {
		if url == typeURL {
			return kind(k)
		}
	}
	panic("a type that the model does not have: " + typeURL)
}

// names are those of every type, and contents how many versions each has: few, so
// that a control plane often goes back to an earlier one.
var names = []string{"a", "b", "c"}

const contents = 5

// item is one content of one resource; content 0 is none.
type item struct {
	k       kind
	name    string
	content int
}

func (it item) String() string { return fmt.Sprintf("%s %s@%d", it.k, it.name, it.content) }

// body is what an item is on the wire.
type body struct {
	any *anypb.Any
	// eds names the endpoints of a cluster; "" for none.
	eds  string
	hash string
}

// bodies returns every item's body, made once, and the inverse.
var bodies = sync.OnceValues(func() (map[item]*body, map[string]item) {
	made, items := make(map[item]*body), make(map[string]item)
	for k := range kinds {
		for _, name := range names {
			for c := 1; c <= contents; c++ {
				it := item{k, name, c}
				any, err := anypb.New(message(it))
				if err != nil {
					panic(err)
				}
				r, err := xds.FromAny(k.url(), "", any, time.Time{})
				if err != nil {
					panic(err)
				}
				made[it] = &body{any: any, eds: r.EDSName, hash: r.Version}
				items[any.GetTypeUrl()+string(any.GetValue())] = it
			}
		}
	}
	return made, items
})

// message is the resource of an item. Content 3 of a cluster has no endpoints of
// its own, and content 4 those of the cluster b.
func message(it item) proto.Message {
	mark := strconv.Itoa(it.content)
	switch it.k {
	case cds:
		c := &clusterv3.Cluster{Name: it.name, AltStatName: mark}
		if it.content != 3 {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		}
		if it.content == 4 {
			c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: "b"}
		}
		return c
	case eds:
		return &endpointv3.ClusterLoadAssignment{ClusterName: it.name, Policy: &endpointv3.ClusterLoadAssignment_Policy{WeightedPriorityHealth: it.content&1 == 1},
			NamedEndpoints: map[string]*endpointv3.Endpoint{mark: {}}}
	case lds:
		return &listenerv3.Listener{Name: it.name, StatPrefix: mark}
	default:
		return &routev3.RouteConfiguration{Name: it.name, InternalOnlyHeaders: []string{mark}}
	}
}

// wire returns an item's body.
func (it item) wire() *body {
	made, _ := bodies()
	return made[it]
}

// read returns the item of a body that came over the wire.
func read(any *anypb.Any) item {
	_, items := bodies()
	it, ok := items[any.GetTypeUrl()+string(any.GetValue())]
	if !ok {
		panic("a body that nobody sent: " + any.GetTypeUrl())
	}
	return it
}

// hashed returns the item of a content hash, which clients see as the version.
func hashed(k kind, name, hash string) (item, bool) {
	for c := 1; c <= contents; c++ {
		if it := (item{k, name, c}); it.wire().hash == hash {
			return it, true
		}
	}
	return item{}, false
}
