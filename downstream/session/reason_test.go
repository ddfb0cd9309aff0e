package session

import (
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// If some of the resources that the client was sent are forgotten when it answers, it is unknown
// which part of its reason is secret.
func TestAReasonIsNotShownIfItsResponseIsForgotten(t *testing.T) {
	s := New(Config{Form: xds.Delta})
	s.Request(&Request{Type: xds.ClusterType})
	sub := s.types[xds.ClusterType]
	r := xdstest.Resource(xdstest.StaticCluster("c", "127.0.0.1:1"), "1")
	const said = "c: the key PLANTED is wrong"
	for _, tc := range []struct {
		partly bool
		want   string
	}{{false, said}, {true, unknownReason}} {
		sub.inFlight = []sentResponse{{nonce: "1", revision: 1, resources: []*xds.Resource{r}, incomplete: tc.partly}}
		v := s.Request(&Request{Type: xds.ClusterType, Nonce: "1", NACK: true, Error: said}).Answer
		if v == nil || v.Error != tc.want {
			t.Errorf("partly %v: %+v", tc.partly, v)
		}
	}
}

// A client may NACK an older response, with another version of a resource.
func TestAReasonMayConcernAnyVersionThatTheClientHas(t *testing.T) {
	s := New(Config{Form: xds.SotW})
	s.Request(&Request{Type: xds.ClusterType})
	sub := s.types[xds.ClusterType]
	with := func(secret string) *xds.Resource {
		c := xdstest.StaticCluster("c", "127.0.0.1:1")
		c.AltStatName = "-----BEGIN PRIVATE KEY-----\n" + secret + "\n-----END PRIVATE KEY-----"
		return xdstest.Resource(c, "1")
	}
	sub.copyOf("c")
	h := sub.sent.get("c")
	h.acked, h.last, h.needRare().unconfirmed = with("PLANTED-ACKED-0123456789"), with("PLANTED-SENT-0123456789"), with("PLANTED-UNJUDGED-0123456789")
	sub.inFlight = []sentResponse{{nonce: "1", revision: 1, resources: []*xds.Resource{with("PLANTED-FLIGHT-0123456789")}}}
	v := s.Request(&Request{Type: xds.ClusterType, Nonce: "1", NACK: true, Error: "PLANTED-ACKED-0123456789, PLANTED-SENT-0123456789, PLANTED-UNJUDGED-0123456789, PLANTED-FLIGHT-0123456789"}).Answer
	if strings.Contains(v.Error, "PLANTED") || strings.Count(v.Error, "[redacted]") != 4 {
		t.Errorf("%q", v.Error)
	}
}
