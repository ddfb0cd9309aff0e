package agent

import (
	"maps"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// protocol.md 8.6.
func TestClientStatusIsServed(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.start()
		c := r.client(xdstest.ClientConfig{Reject: func(_ string, w *discoveryv3.Resource) error {
			if w.GetName() == "l1" {
				return status.Error(3, "malformed IP address")
			}
			return nil
		}})
		r.cp.Set(&tlsv3.Secret{Name: "s1", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{}}})
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.ListenerType)
		c.Subscribe(xds.SecretType, "s1")
		r.pass(time.Second)
		rows := make(map[string]*statusv3.ClientConfig_GenericXdsConfig)
		for _, row := range r.clientStatus().GetGenericXdsConfigs() {
			rows[xds.Short(row.GetTypeUrl())+" "+row.GetName()] = row
		}
		cluster := &clusterv3.Cluster{}
		if row := rows["CDS c1"]; row.GetClientStatus() != adminv3.ClientResourceStatus_ACKED || row.GetVersionInfo() == "" || row.GetLastUpdated() == nil ||
			row.GetXdsConfig().UnmarshalTo(cluster) != nil || cluster.GetName() != "c1" {
			t.Errorf("c1: %v", row)
		}
		state := rows["LDS l1"].GetErrorState()
		if row := rows["LDS l1"]; row.GetClientStatus() != adminv3.ClientResourceStatus_NACKED || row.GetVersionInfo() != "" || row.GetXdsConfig() != nil ||
			state.GetDetails() == "" || state.GetVersionInfo() == "" || state.GetFailedConfiguration() == nil || state.GetLastUpdateAttempt() == nil {
			t.Errorf("l1: %v", row)
		}
		if row := rows["SDS s1"]; row.GetClientStatus() != adminv3.ClientResourceStatus_ACKED || row.GetXdsConfig() != nil {
			t.Errorf("s1: %v", row)
		}
		if scope := r.clientStatus().GetClientScope(); scope != xds.EnvoyUserAgent {
			t.Errorf("the scope is %q", scope)
		}
		for _, row := range r.clientStatus(func(req *statusv3.ClientStatusRequest) { req.ExcludeResourceContents = true }).GetGenericXdsConfigs() {
			if row.GetXdsConfig() != nil || row.GetErrorState().GetFailedConfiguration() != nil {
				t.Errorf("contents were excluded: %v", row)
			}
		}
	})
}

// protocol.md 3.14, 5.3, gRFC A88: what the control plane says does not exist, what
// it says nothing of, and what it cannot give.
func TestClientStatusTellsWhatIsMissing(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.start()
		r.cp.Hold(xds.EndpointType)
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(xds.EndpointType, "gone", "silent", "broken")
		r.pass(time.Second)
		errs := []*discoveryv3.ResourceError{
			{ResourceName: &discoveryv3.ResourceName{Name: "gone"}, ErrorDetail: &statuspb.Status{Code: int32(codes.NotFound)}},
			{ResourceName: &discoveryv3.ResourceName{Name: "broken"}, ErrorDetail: &statuspb.Status{Code: int32(codes.Internal)}},
		}
		if r.form == xdstest.Delta {
			r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.EndpointType, Nonce: r.cp.Nonce(), ResourceErrors: errs})
		} else {
			r.cp.SendRaw(0, &discoveryv3.DiscoveryResponse{TypeUrl: xds.EndpointType, Nonce: r.cp.Nonce(), VersionInfo: "x", ResourceErrors: errs})
		}
		r.pass(15 * time.Second)
		got := make(map[string]adminv3.ClientResourceStatus)
		for _, row := range r.clientStatus().GetGenericXdsConfigs() {
			if row.GetTypeUrl() == xds.EndpointType {
				got[row.GetName()] = row.GetClientStatus()
			}
		}
		want := map[string]adminv3.ClientResourceStatus{
			"gone":   adminv3.ClientResourceStatus_DOES_NOT_EXIST,
			"silent": adminv3.ClientResourceStatus_TIMEOUT,
			"broken": adminv3.ClientResourceStatus_RECEIVED_ERROR,
		}
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// clientStatus fetches the status of the only group.
func (r *rig) clientStatus(edit ...func(*statusv3.ClientStatusRequest)) *statusv3.ClientConfig {
	r.Helper()
	req := &statusv3.ClientStatusRequest{}
	for _, f := range edit {
		f(req)
	}
	conn, err := r.down.Dial()
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	got, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(r.Context(), req)
	if err != nil || len(got.GetConfig()) != 1 || got.GetConfig()[0].GetNode().GetId() != "xdstest" {
		r.Fatalf("%v %v", got, err)
	}
	return got.GetConfig()[0]
}
