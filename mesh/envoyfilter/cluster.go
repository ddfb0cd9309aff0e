package envoyfilter

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Cluster returns a cluster with the patches of a context applied; nil if they remove it. hosts returns
// the services of an inbound cluster.
func (s *Set) Cluster(context Context, c *clusterv3.Cluster, hosts func() []string) (*clusterv3.Cluster, []Failure) {
	var of []string
	candidates := s.in(context, networking.EnvoyFilter_CLUSTER)
	if slices.ContainsFunc(candidates, func(p *Patch) bool { return p.match.GetCluster().GetService() != "" }) {
		of = hosts()
	}
	candidates = slices.DeleteFunc(candidates, func(p *Patch) bool { return p.operation == opAdd || !p.isForCluster(c.GetName(), of) })
	return patched(s, context, c, candidates, func(c *clusterv3.Cluster, r *run) *clusterv3.Cluster {
		for _, p := range r.of(networking.EnvoyFilter_CLUSTER) {
			if !p.isForCluster(c.GetName(), of) {
				continue
			}
			switch p.operation {
			case opRemove:
				r.changed = true
				return nil
			case opMerge, opMergeReplace:
				r.changed = true
				if err := mergeCluster(c, p); err != nil {
					r.fail(p, err)
				}
			}
		}
		return c
	})
}

// mergeCluster merges the value of a patch into a cluster. Its transport socket is merged into that of the
// same name, also where a match of endpoints decides about it.
func mergeCluster(c *clusterv3.Cluster, p *Patch) error {
	value := p.value.(*clusterv3.Cluster)
	socket := value.GetTransportSocket()
	if socket == nil {
		merge(c, value, p.operation == opMergeReplace)
		return nil
	}
	if matches := c.GetTransportSocketMatches(); len(matches) > 0 {
		at := slices.IndexFunc(matches, func(m *clusterv3.Cluster_TransportSocketMatch) bool {
			return m.GetTransportSocket().GetName() == socket.GetName()
		})
		if at < 0 {
			return fmt.Errorf("the endpoints decide about its transport socket, and there is none with the name %q", socket.GetName())
		}
		if err := mergeSocket(matches[at].GetTransportSocket(), socket); err != nil {
			return err
		}
	} else if of := c.GetTransportSocket(); of.GetName() == socket.GetName() {
		if err := mergeSocket(of, socket); err != nil {
			return err
		}
	} else {
		c.TransportSocket = proto.CloneOf(socket)
	}
	rest := proto.CloneOf(value)
	rest.TransportSocket = nil
	merge(c, rest, p.operation == opMergeReplace)
	return nil
}

// mergeSocket merges a transport socket into one of the same name.
func mergeSocket(dst, src *corev3.TransportSocket) error {
	if src.GetTypedConfig() == nil {
		return nil
	}
	config, err := mergedAny(dst.GetTypedConfig(), src.GetTypedConfig())
	if err == nil {
		dst.ConfigType = &corev3.TransportSocket_TypedConfig{TypedConfig: config}
	}
	return err
}
