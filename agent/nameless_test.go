package agent

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// nameTable is Istio's table of hosts: field 1 is a map from a name to an address, and there is
// no field for a name.
func nameTable(hosts ...string) *anypb.Any {
	const url = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	var body []byte
	for _, host := range hosts {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), host)
		body = protowire.AppendBytes(protowire.AppendTag(body, 1, protowire.BytesType), entry)
	}
	return &anypb.Any{TypeUrl: url, Value: body}
}

// A type whose resources have no name has one resource. It stays the same one when its content
// changes, and is part of the last known good.
func TestAResourceWithoutANameStaysTheSameOne(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.keepIn(t.TempDir())
		r.start()
		table := nameTable().GetTypeUrl()
		watch := func() *xdstest.Client {
			c := r.client(xdstest.ClientConfig{Node: r.cfg.Node})
			c.Subscribe(table, xds.Wildcard)
			r.quiet()
			return c
		}
		c := watch()
		r.cp.Silent(true)
		say := func(nonce string, body *anypb.Any) {
			if r.form == xdstest.SotW {
				r.cp.SendRaw(0, &discoveryv3.DiscoveryResponse{TypeUrl: table, Nonce: nonce, VersionInfo: nonce, Resources: []*anypb.Any{body}})
			} else {
				r.cp.SendRaw(0, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: table, Nonce: nonce, Resources: []*discoveryv3.Resource{{Version: nonce, Resource: body}}})
			}
			r.pass(time.Second)
		}
		say("t1", nameTable("a", "b"))
		second := nameTable("a", "c")
		say("t2", second)
		held := r.agent.groups.Members()[0].Cache().Resources(table)
		if len(held) != 1 || held[0].Name != "" || string(held[0].Current.Body.GetValue()) != string(second.GetValue()) {
			t.Fatalf("held: %+v", held)
		}
		got := c.Responses()
		if last := len(got) - 1; last < 1 || len(got[last].Resources) != 1 || string(got[last].Resources[0].GetResource().GetValue()) != string(second.GetValue()) {
			t.Errorf("the client was told:\n%v", got)
		}
		r.pass(time.Minute)
		r.cp.Stop()
		r.restart()
		r.pass(5 * time.Second)
		if got := watch().Responses(); len(got) != 1 || len(got[0].Resources) != 1 || string(got[0].Resources[0].GetResource().GetValue()) != string(second.GetValue()) {
			t.Errorf("offline, a client was told:\n%v", got)
		}
	})
}
