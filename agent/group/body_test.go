package group_test

import (
	"context"
	"errors"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// asking is a source that puts one resource, and then asks for its cached body.
type asking struct {
	put *xds.Resource
	got chan *anypb.Any // has room for one
}

func (a asking) Name() string { return "asking" }

func (a asking) Run(ctx context.Context, feed upstream.State, answered func() error) error {
	if err := answered(); err != nil {
		return err
	}
	feed.Apply(xds.Update{Source: "asking", Type: a.put.Type, Resources: []*xds.Resource{a.put}, KeepUnsubscribed: true}, nil)
	a.got <- feed.Body(a.put.Type, []byte(a.put.Name))
	<-ctx.Done()
	return errors.New("the end")
}

func TestASourceSharesTheBodiesOfTheCache(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := asking{
			put: &xds.Resource{Type: xds.ClusterType, Name: "c", Version: "1", Body: &anypb.Any{TypeUrl: xds.ClusterType}},
			got: make(chan *anypb.Any, 1),
		}
		g := group.New(group.Config{
			Node: &corev3.Node{Id: "n"}, Cache: cache.Config{},
			Upstreams: func() *upstream.Failover { return &upstream.Failover{Sources: []upstream.Source{source}} },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		if got := <-source.got; got != source.put.Body {
			t.Errorf("%v is held", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
