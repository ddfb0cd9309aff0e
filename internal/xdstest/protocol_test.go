package xdstest_test

import (
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestSotWRules(t *testing.T) {
	cds := func(version, nonce string, names ...string) proto.Message {
		return &discoveryv3.DiscoveryRequest{TypeUrl: xds.ClusterType, VersionInfo: version, ResponseNonce: nonce, ResourceNames: names}
	}
	eds := func(nonce string, names ...string) proto.Message {
		return &discoveryv3.DiscoveryRequest{TypeUrl: xds.EndpointType, ResponseNonce: nonce, ResourceNames: names}
	}
	from := func(agent string, m proto.Message) proto.Message {
		m.(*discoveryv3.DiscoveryRequest).Node = &corev3.Node{Id: "n", UserAgentName: agent}
		return m
	}
	for name, test := range map[string]struct {
		send []proto.Message
		want []string
	}{
		"1.1 a first request is answered whatever its version": {
			send: []proto.Message{cds("1", "")},
			want: []string{"CDS n1 [a b]"},
		},
		"1.2 an ACK is not answered": {
			send: []proto.Message{cds("", ""), cds("1", "n1")},
			want: []string{"CDS n1 [a b]"},
		},
		"1.4 an EDS request that repeats its ACK is answered in full": {
			send: []proto.Message{eds("", "a", "b"), eds("n1", "b", "a"), eds("n1", "a", "b")},
			want: []string{"EDS n1 [a b]", "EDS n2 [a b]"},
		},
		"1.4 a CDS request that repeats its ACK is not": {
			send: []proto.Message{cds("", ""), cds("1", "n1"), cds("1", "n1")},
			want: []string{"CDS n1 [a b]"},
		},
		"1.5 more names are answered, fewer are not, and more again are": {
			send: []proto.Message{eds("", "a"), eds("n1", "a", "b"), eds("n2", "a"), eds("n2", "a", "b")},
			want: []string{"EDS n1 [a]", "EDS n2 [a b]", "EDS n3 [a b]"},
		},
		"1.6 a stale nonce changes nothing": {
			send: []proto.Message{eds("", "a"), eds("old", "a", "b"), eds("n1", "a")},
			want: []string{"EDS n1 [a]"},
		},
		"1.7 an empty nonce later on updates the names": {
			send: []proto.Message{eds("", "a"), eds("", "a", "b")},
			want: []string{"EDS n1 [a]", "EDS n2 [a b]"},
		},
		"2.2 a star is a wildcard, 2.4 and without it the wildcard ends": {
			send: []proto.Message{cds("", "", "*", "a"), cds("1", "n1", "a"), cds("1", "n1", "a", "*")},
			want: []string{"CDS n1 [a b]", "CDS n2 [a b]"},
		},
		"2.3 names that go again are no wildcard": {
			send: []proto.Message{cds("", "", "a"), cds("1", "n1")},
			want: []string{"CDS n1 [a]"},
		},
		"2.4 Envoy keeps its wildcard when it names a cluster on demand": {
			send: []proto.Message{from("envoy", cds("", "")), cds("1", "n1", "odc")},
			want: []string{"CDS n1 [a b]", "CDS n2 [a b]"},
		},
		"2.4 another client does not": {
			send: []proto.Message{from("grpc", cds("", "")), cds("1", "n1", "odc")},
			want: []string{"CDS n1 [a b]", "CDS n2 "},
		},
		"1.12 an empty type URL is passed over": {
			send: []proto.Message{&discoveryv3.DiscoveryRequest{}, cds("", "")},
			want: []string{"CDS n1 [a b]"},
		},
	} {
		t.Run(name, func(t *testing.T) { transcript(t, xdstest.SotW, test.send, test.want) })
	}
}

func TestDeltaRules(t *testing.T) {
	type request = discoveryv3.DeltaDiscoveryRequest
	irv := func(pairs ...string) map[string]string {
		m := make(map[string]string)
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	for name, test := range map[string]struct {
		send []proto.Message
		want []string
	}{
		"2.4 and 2.6 a legacy wildcard outlives names": {
			send: []proto.Message{
				&request{TypeUrl: xds.ClusterType},
				&request{TypeUrl: xds.ClusterType, ResourceNamesSubscribe: []string{"a"}},
			},
			want: []string{"CDS n1 [a b]", "CDS n2 [a]"},
		},
		"2.5 a name that is unsubscribed under a wildcard is answered": {
			send: []proto.Message{
				&request{TypeUrl: xds.ClusterType, ResourceNamesSubscribe: []string{"*", "a", "x"}},
				&request{TypeUrl: xds.ClusterType, ResourceNamesUnsubscribe: []string{"a", "x"}},
			},
			want: []string{"CDS n1 [a b] removed=[x]", "CDS n2 [a] removed=[x]"},
		},
		"2.5 without its star a wildcard ends": {
			send: []proto.Message{
				&request{TypeUrl: xds.ClusterType},
				&request{TypeUrl: xds.ClusterType, ResourceNamesUnsubscribe: []string{"*"}},
				&request{TypeUrl: xds.ClusterType, ResourceNamesSubscribe: []string{"b"}},
			},
			want: []string{"CDS n1 [a b]", "CDS n2 [b]"},
		},
		"3.1 a stale nonce does not refuse a subscription": {
			send: []proto.Message{
				&request{TypeUrl: xds.EndpointType, ResourceNamesSubscribe: []string{"a"}},
				&request{TypeUrl: xds.EndpointType, ResourceNamesSubscribe: []string{"b"}, ResponseNonce: "old"},
			},
			want: []string{"EDS n1 [a]", "EDS n2 [b]"},
		},
		"3.2 what is subscribed to again is sent again": {
			send: []proto.Message{
				&request{TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"r"}},
				&request{TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"r"}},
			},
			want: []string{"RDS n1 [r]", "RDS n2 [r]"},
		},
		"3.2 a name that comes with its version is not sent": {
			send: []proto.Message{&request{TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"r"}, InitialResourceVersions: irv("r", "1")}},
		},
		"3.2 except in EDS": {
			send: []proto.Message{&request{TypeUrl: xds.EndpointType, ResourceNamesSubscribe: []string{"a"}, InitialResourceVersions: irv("a", "1")}},
			want: []string{"EDS n1 [a]"},
		},
		"3.2 a name with another version is": {
			send: []proto.Message{&request{TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"r"}, InitialResourceVersions: irv("r", "none")}},
			want: []string{"RDS n1 [r]"},
		},
		"3.3 an unsubscription is not answered": {
			send: []proto.Message{
				&request{TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"r"}},
				&request{TypeUrl: xds.RouteType, ResourceNamesUnsubscribe: []string{"r", "never"}},
			},
			want: []string{"RDS n1 [r]"},
		},
		"3.4 what does not exist is removed": {
			send: []proto.Message{&request{TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"r", "x"}}},
			want: []string{"RDS n1 [r] removed=[x]"},
		},
		"3.5 what the client has and does not exist any more is removed": {
			send: []proto.Message{&request{TypeUrl: xds.ClusterType, InitialResourceVersions: irv("a", "1", "b", "old", "gone", "1")}},
			want: []string{"CDS n1 [b] removed=[gone]"},
		},
		"2.7 a wildcard answer is sent although nothing is new": {
			send: []proto.Message{&request{TypeUrl: xds.ClusterType, InitialResourceVersions: irv("a", "1", "b", "1")}},
			want: []string{"CDS n1 "},
		},
	} {
		t.Run(name, func(t *testing.T) { transcript(t, xdstest.Delta, test.send, test.want) })
	}
}

// transcript sends requests one after the other to a control plane with the
// clusters and endpoints a and b and the route r, and compares its answers.
func transcript(t *testing.T, p xdstest.Protocol, send []proto.Message, want []string) {
	converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: p, Manual: true}, func(c *conversation) {
		c.cp.Set(xdstest.StaticCluster("a"), xdstest.StaticCluster("b"), xdstest.CLA("a"), xdstest.CLA("b"), xdstest.Route("r", "a"))
		for _, m := range send {
			c.client.Send(m)
			synctest.Wait()
		}
		var got []string
		for _, a := range c.cp.Answers() {
			names := xdstest.Answer{Names: a.Names, Removed: a.Removed}.String()
			got = append(got, xds.Short(a.Type)+" "+a.Nonce+names[len("0  answer  nonce="):])
		}
		c.lines("answers", got, want)
	})
}

func TestEnvoyThatNamesClustersAfterAReconnectKeepsItsWildcard(t *testing.T) {
	converse(t, xdstest.Config{}, xdstest.ClientConfig{}, func(c *conversation) {
		c.cp.Set(xdstest.StaticCluster("a"), xdstest.StaticCluster("odc"))
		c.client.Subscribe(xds.ClusterType)
		c.client.Subscribe(xds.ClusterType, "odc")
		synctest.Wait()
		c.reconnect()
		requests := c.cp.Requests(xds.ClusterType)
		var first xdstest.Event
		for _, e := range requests {
			if e.Stream == 2 {
				first = e
				break
			}
		}
		if got := first.String(); got != "2 sotw subscribe CDS version=1 names=[odc] node=xdstest" {
			c.Fatal(got)
		}
		c.holds(xds.ClusterType, "a", "odc")
	})
}
