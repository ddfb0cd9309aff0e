package group_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// A directory is reported once, so its resources must not be evicted before a client subscribes to
// them.
func TestADirectoryLargerThanTheLRUIsKeptWithoutSubscribers(t *testing.T) {
	const total = 10_000 // more than twice cache.DefaultUnreferenced
	dir := t.TempDir()
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: xds.EndpointType}
	for i := range total {
		resp.Resources = append(resp.Resources, xdstest.Pack(xdstest.CLA(fmt.Sprintf("c%d", i), "127.0.0.1:1")))
	}
	content, err := proto.Marshal(resp)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "endpoints.pb"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	bubble.Test(t, func(t *testing.T) {
		source := file.New(file.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		g := group.New(group.Config{
			Node:      &corev3.Node{Id: "web-1"},
			Upstreams: func() *upstream.Failover { return &upstream.Failover{Sources: []upstream.Source{source}} },
			Cache:     cache.Config{},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(g.Cache().Resources(xds.EndpointType)); got != total {
			t.Errorf("%d of %d resources are held", got, total)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
