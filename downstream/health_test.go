package downstream_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// reports are what views that take in reports of health were told.
type reports struct {
	mu  sync.Mutex
	all []string
}

type reporting struct {
	downstream.View
	to *reports
}

func (v reporting) Report(healthy bool, reason string) {
	v.to.mu.Lock()
	defer v.to.mu.Unlock()
	v.to.all = append(v.to.all, strings.TrimSpace(fmt.Sprintf("%v %s", healthy, reason)))
}

// report returns a report of health as Istio's agent sends it; reason is "" for a healthy workload, and node may be nil.
func report(form xdstest.Protocol, node *corev3.Node, reason string) proto.Message {
	var detail *statuspb.Status
	if reason != "" {
		detail = &statuspb.Status{Code: 13, Message: reason}
	}
	if form == xdstest.Delta {
		return &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.HealthType, ErrorDetail: detail}
	}
	return &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: xds.HealthType, ErrorDetail: detail}
}

func TestAReportOfHealthSubscribesToNothingAndGetsNoResponse(t *testing.T) {
	r := &reports{}
	for _, takes := range []bool{true, false} {
		inBothForms(t, downstream.Config{}, func(s *service) {
			r.all = nil
			if takes {
				s.state.wrap = func(v downstream.View) downstream.View { return reporting{v, r} }
			}
			c := s.client(s.dial())
			c.Send(report(s.form, nil, "")) // nobody knows yet whose it is
			c.Send(s.ask(node, xds.ClusterType))
			c.Send(report(s.form, nil, "refused"))
			c.Send(report(s.form, nil, ""))
			s.quiet()
			want := []string{"false refused", "true"}
			if !takes {
				want = nil
			}
			r.mu.Lock()
			if !slices.Equal(r.all, want) {
				t.Errorf("reports %q, want %q", r.all, want)
			}
			r.mu.Unlock()
			streams := s.server.Streams()
			if len(streams) != 1 || !slices.Equal(streams[0].Types, []string{"CDS"}) || streams[0].Subscriptions != 1 {
				t.Errorf("streams %+v", streams)
			}
			s.put(xdstest.Cluster("c1", ""))
			s.quiet()
			if got := c.Of(xds.HealthType); len(got) != 0 {
				t.Errorf("it is answered: %v", got)
			}
			if got := c.Of(xds.ClusterType); len(got) != 1 {
				t.Errorf("%d responses", len(got))
			}
		})
	}
}

func TestAReportOfHealthWithANodeOpensAStream(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		c := s.client(s.dial())
		c.Send(report(s.form, &corev3.Node{Id: "n"}, ""))
		s.quiet()
		if streams := s.server.Streams(); len(streams) != 1 || streams[0].NodeID != "n" || len(streams[0].Types) != 0 {
			t.Errorf("streams %+v", streams)
		}
	})
}
