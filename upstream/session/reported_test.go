package session

import (
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// The errors of a control plane go to logs and terminals, and so do the errors about a response
// that cannot be read.
func TestErrorsOfAControlPlaneAreOneBoundedLine(t *testing.T) {
	s := New(Config{Form: xds.Delta})
	s.Subscribe(xds.EndpointType, false, []string{"a"}, nil)
	s.Next(time.Time{})
	bad := make([]*anypb.Any, 5000)
	for i := range bad {
		bad[i] = &anypb.Any{TypeUrl: xds.EndpointType, Value: []byte{0xff}}
	}
	u, err := s.SotW(&discoveryv3.DiscoveryResponse{TypeUrl: xds.EndpointType, Nonce: "1", VersionInfo: "1", Resources: bad, ResourceErrors: []*discoveryv3.ResourceError{{
		ResourceName: &discoveryv3.ResourceName{Name: "a"},
		ErrorDetail:  &statuspb.Status{Code: 5, Message: "\x1b[31mnot\nhere " + strings.Repeat("x", 3<<20)},
	}}}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	said := u.Errors[len(u.Errors)-1].Err.Error()
	if len(said) > redact.MaxReason+100 || strings.ContainsAny(said, "\x1b\n") || !strings.Contains(said, "not; here") {
		t.Errorf("%d bytes: %.200q", len(said), said)
	}
	req, _ := s.Next(time.Time{})
	if req == nil || req.NACK == "" || len(req.NACK) > redact.MaxReason {
		t.Errorf("the NACK of a response with %d bad resources: %.300v", len(bad), req)
	}
}
