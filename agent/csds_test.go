package agent

import (
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
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
		c.Subscribe(xds.ClusterType)
		c.Subscribe(xds.ListenerType)
		r.pass(time.Second)
		conn, err := r.down.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		got, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(r.Context(), &statusv3.ClientStatusRequest{})
		if err != nil || len(got.GetConfig()) != 1 || got.GetConfig()[0].GetNode().GetId() != "xdstest" {
			t.Fatalf("%v %v", got, err)
		}
		rows := make(map[string]*statusv3.ClientConfig_GenericXdsConfig)
		for _, row := range got.GetConfig()[0].GetGenericXdsConfigs() {
			rows[xds.Short(row.GetTypeUrl())+" "+row.GetName()] = row
		}
		if row := rows["CDS c1"]; row.GetClientStatus() != adminv3.ClientResourceStatus_ACKED || row.GetVersionInfo() == "" {
			t.Errorf("c1: %v", row)
		}
		if row := rows["LDS l1"]; row.GetClientStatus() != adminv3.ClientResourceStatus_NACKED || row.GetErrorState().GetDetails() == "" {
			t.Errorf("l1: %v", row)
		}
	})
}
