package grpcclient

import (
	"context"
	"fmt"
	"maps"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// status asks a CSDS server on a Unix socket. It returns the resources that are accepted, NACKed or missing, by "type name".
func status(r *rig.Rig, socket string) (map[string]*statusv3.ClientConfig_GenericXdsConfig, error) {
	r.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	resp, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(ctx, &statusv3.ClientStatusRequest{})
	if err != nil {
		return nil, err
	}
	out := make(map[string]*statusv3.ClientConfig_GenericXdsConfig)
	for _, config := range resp.GetConfig() {
		if config.GetClientScope() == "" {
			return nil, fmt.Errorf("a configuration of %s has no client_scope", config.GetNode().GetId())
		}
		for _, row := range config.GetGenericXdsConfigs() {
			out[row.GetTypeUrl()+" "+row.GetName()] = row
		}
	}
	return out, nil
}

// What the agent says of a client in CSDS is what the client, in grpc-go's CSDS, says of itself: the same resources, with
// the same contents and statuses, also after a change. The versions differ: gRPC speaks SotW, where a response has a
// version, and the agent says that of each resource.
func TestTheAgentSaysOfAClientWhatTheClientSaysOfItself(t *testing.T) {
	t.Parallel()
	withBothUpstreams(t, func(w *world) {
		cp := newControlPlane(w.Rig)
		first, second := backend(w.Rig), backend(w.Rig)
		cp.lead(first)
		agent := w.startAgent([]*controlPlane{cp}, "--removal-confirm-after", "1s")
		socket := w.Path("csds.sock")
		c := startClient(w.Rig, "client", agent.GRPCBootstrap(), csdsVariable+"="+socket)
		same := func() {
			w.Helper()
			w.Check(testbed.Eventually(limit, func() error {
				own, err := status(w.Rig, socket)
				if err != nil {
					return err
				}
				ours, err := status(w.Rig, agent.Socket())
				if err != nil {
					return err
				}
				if len(own) < 4 || len(own) != len(ours) {
					return fmt.Errorf("the client has %d resources, and the agent says %d", len(own), len(ours))
				}
				for key := range maps.Keys(own) {
					a, b := own[key], ours[key]
					if b == nil || a.GetClientStatus() != b.GetClientStatus() || b.GetVersionInfo() == "" || !proto.Equal(a.GetXdsConfig(), b.GetXdsConfig()) {
						return fmt.Errorf("%s: the client says\n%v\nand the agent\n%v", key, a, b)
					}
					if b.GetLastUpdated() == nil {
						return fmt.Errorf("%s: the agent does not say when it was updated", key)
					}
				}
				return nil
			}))
		}
		c.reaches(first)
		same()
		cp.set(&routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "c1"}}, map[string]string{"c1": second})
		c.reaches(second)
		same()
		// Not one RPC more: when a route changes its cluster, grpc-go 1.85 may fail one by itself ("unknown cluster selected
		// for RPC"), before its balancer knows the cluster; without the agent more of them.
		c.finish()
	})
}
