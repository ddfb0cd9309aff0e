package xdstest_test

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

const unknownType = "type.googleapis.com/example.of.the.Future"

func TestColdStartIsAnsweredAndAcknowledged(t *testing.T) {
	want := map[xdstest.Protocol][]string{
		xdstest.SotW: {
			"1 sotw subscribe CDS node=xdstest",
			"1 sotw ack CDS version=1 nonce=n1",
			"1 sotw subscribe EDS names=[a b]",
			"1 sotw ack EDS version=1 nonce=n2 names=[a b]",
		},
		xdstest.Delta: {
			"1 delta subscribe CDS node=xdstest",
			"1 delta ack CDS nonce=n1",
			"1 delta subscribe EDS sub=[a b]",
			"1 delta ack EDS nonce=n2",
		},
	}
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""), xdstest.Cluster("b", ""),
			xdstest.CLA("a", "127.0.0.1:1"), xdstest.CLA("b", "127.0.0.1:2"), xdstest.CLA("other"))
		c.client.Subscribe(xds.ClusterType)
		c.holds(xds.ClusterType, "a", "b")
		c.client.Subscribe(xds.EndpointType, "a", "b")
		c.holds(xds.EndpointType, "a", "b")
		c.requests(0, want[c.protocol]...)
	})
}

func TestWildcardAnswerOfAnEmptyStateIsSent(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.client.Subscribe(xds.ListenerType)
		c.answers(0, "1 LDS version=0 nonce=n1 ")
	})
}

func TestNamedTypeWithoutNamesIsNoSubscription(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Route("r", "a"))
		c.client.Subscribe(xds.RouteType)
		c.answers(0)
	})
}

func TestChangesArePushedInPushOrder(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.client.Subscribe(xds.RouteType, "r")
		c.client.Subscribe(xds.ListenerType)
		c.client.Subscribe(xds.EndpointType, "a")
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		from := len(c.cp.Answers())
		c.cp.Set(xdstest.Route("r", "a"), xdstest.Listener("l", 80, "r"), xdstest.CLA("a"), xdstest.Cluster("a", ""))
		synctest.Wait()
		var got []string
		for _, a := range c.cp.Answers()[from:] {
			got = append(got, xds.Short(a.Type))
		}
		c.lines("pushes", got, []string{"CDS", "EDS", "LDS", "RDS"})
	})
}

func TestUnchangedResourceIsNotPushed(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""))
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		c.cp.Set(xdstest.Cluster("a", ""))
		c.answers(1)
	})
}

func TestOnlyWhatChangedOfANamedTypeIsPushed(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Route("r1", "a"), xdstest.Route("r2", "a"))
		c.client.Subscribe(xds.RouteType, "r1", "r2")
		synctest.Wait()
		c.cp.Set(xdstest.Route("r2", "b"))
		c.answers(1, "1 RDS version=2 nonce=n2 [r2]")
		c.holds(xds.RouteType, "r1", "r2")
	})
}

func TestRemovalReachesTheClientWhereItsProtocolCanSayIt(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""), xdstest.Cluster("b", ""), xdstest.Route("r", "a"))
		c.client.Subscribe(xds.ClusterType)
		c.client.Subscribe(xds.RouteType, "r")
		synctest.Wait()
		c.cp.Remove(xds.ClusterType, "a")
		c.cp.Remove(xds.RouteType, "r")
		c.holds(xds.ClusterType, "b")
		if c.protocol == xdstest.SotW {
			c.holds(xds.RouteType, "r")
		} else {
			c.holds(xds.RouteType)
		}
	})
}

func TestHeldTypeIsAnsweredOnceAfterRelease(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Hold(xds.ClusterType)
		c.client.Subscribe(xds.ClusterType)
		c.client.Subscribe(xds.ListenerType)
		c.cp.Set(xdstest.Cluster("a", ""))
		c.cp.Set(xdstest.Cluster("a", "other"))
		c.answers(0, "1 LDS version=0 nonce=n1 ")
		c.cp.Release(xds.ClusterType)
		c.answers(1, "1 CDS version=2 nonce=n2 [a]")
	})
}

func TestSilentControlPlaneTakesRequestsIn(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""))
		c.cp.Silent(true)
		c.client.Subscribe(xds.ClusterType)
		c.answers(0)
		if got := len(c.cp.Requests(xds.ClusterType)); got != 1 {
			t.Fatalf("%d requests logged, want 1", got)
		}
		c.cp.Silent(false)
		c.holds(xds.ClusterType, "a")
	})
}

func TestCutEndsStreamsAfterWhatWasPushed(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		c.cp.Set(xdstest.Cluster("a", ""))
		c.cp.Cut(status.Error(codes.Aborted, "script"))
		c.holds(xds.ClusterType, "a")
		if got := status.Code(c.client.Err()); got != codes.Aborted {
			c.Fatalf("stream ended with %v, want ABORTED", c.client.Err())
		}
		if now, ever := c.cp.Streams(); now != 0 || ever != 1 {
			c.Fatalf("%d streams of %d open, want 0 of 1", now, ever)
		}
	})
}

func TestCutByNumberLeavesOtherStreamsOpen(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Cut(nil, 7)
		synctest.Wait()
		if err := c.client.Err(); err != nil {
			c.Fatal(err)
		}
		c.cp.Cut(nil, 1)
		synctest.Wait()
		if got := status.Code(c.client.Err()); got != codes.Unavailable {
			c.Fatalf("stream ended with %v, want UNAVAILABLE", c.client.Err())
		}
	})
}

func TestRefusedStreamsAreUnavailable(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Refuse(true)
		c.client.Subscribe(xds.ClusterType)
		c.reconnect()
		if got := status.Code(c.client.Err()); got != codes.Unavailable {
			c.Fatalf("stream ended with %v, want UNAVAILABLE", c.client.Err())
		}
		c.cp.Refuse(false)
		c.reconnect()
		if err := c.client.Err(); err != nil {
			c.Fatal(err)
		}
	})
}

func TestStoppedControlPlaneComesBackWithItsState(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""))
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		c.cp.Stop()
		synctest.Wait()
		if c.client.Err() == nil {
			c.Fatal("the stream is still open")
		}
		c.holds(xds.ClusterType, "a")
		c.cp.Set(xdstest.Cluster("b", ""))
		c.cp.Serve(c.pipe.Listen())
		time.Sleep(time.Minute) // virtual: past the back-off of the connection
		c.reconnect()
		c.holds(xds.ClusterType, "a", "b")
	})
}

func TestRawAnswerIsSentAsItIs(t *testing.T) {
	converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: xdstest.Delta}, func(c *conversation) {
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		raw := &discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: xds.ClusterType, Nonce: "mine", SystemVersionInfo: "x", RemovedResources: []string{"gone"},
			Resources:    []*discoveryv3.Resource{xdstest.Wrap(xdstest.Cluster("a", ""), "v")},
			ControlPlane: &corev3.ControlPlane{Identifier: "raw"},
		}
		if n := c.cp.SendRaw(0, raw); n != 1 {
			c.Fatalf("sent to %d streams, want 1", n)
		}
		if n := c.cp.SendRaw(0, &discoveryv3.DiscoveryResponse{TypeUrl: xds.ClusterType}); n != 0 {
			c.Fatalf("a SotW answer was sent to %d Delta streams", n)
		}
		c.answers(1, "1 CDS version=x nonce=mine [a] removed=[gone]")
		if got := c.client.Responses()[1].Identifier; got != "raw" {
			c.Fatalf("identifier %q", got)
		}
		events := c.cp.Events()
		if got := events[len(events)-1].String(); got != "1 delta ack CDS nonce=mine" {
			c.Fatal(got)
		}
	})
}

func TestRawAnswerOfATypeThatWasNotAskedForIsHarmless(t *testing.T) {
	inBoth(t, func(c *conversation) {
		var raw proto.Message = &discoveryv3.DiscoveryResponse{TypeUrl: unknownType, Nonce: "x", VersionInfo: "1"}
		if c.protocol == xdstest.Delta {
			raw = &discoveryv3.DeltaDiscoveryResponse{TypeUrl: unknownType, Nonce: "x"}
		}
		c.cp.SendRaw(1, raw)
		c.answers(0, map[xdstest.Protocol]string{
			xdstest.SotW:  "1 example.of.the.Future version=1 nonce=x ",
			xdstest.Delta: "1 example.of.the.Future version= nonce=x ",
		}[c.protocol])
		if got := c.cp.Requests(unknownType)[0].Kind; got != xdstest.Ack {
			c.Fatalf("verdict %q, want an ACK", got)
		}
		c.client.Send(map[xdstest.Protocol]proto.Message{
			xdstest.SotW:  &discoveryv3.DiscoveryRequest{ResponseNonce: "x"},
			xdstest.Delta: &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "x"},
		}[c.protocol])
		synctest.Wait()
		if err := c.client.Err(); err != nil {
			c.Fatalf("an empty type URL ended the stream: %v", err) // protocol.md 1.12
		}
	})
}

func TestUnknownTypePassesByteForByte(t *testing.T) {
	inBoth(t, func(c *conversation) {
		want := xdstest.Unknown(unknownType, "thing")
		c.cp.Set(want)
		c.client.Subscribe(unknownType, "thing")
		c.holds(unknownType, "thing")
		got := c.client.Held(unknownType)["thing"].GetResource()
		if got.GetTypeUrl() != want.GetTypeUrl() || !bytes.Equal(got.GetValue(), want.GetValue()) {
			c.Fatalf("got %x, want %x", got.GetValue(), want.GetValue())
		}
	})
}

func TestWrapperKeepsItsNameVersionTTLAndAliases(t *testing.T) {
	inBoth(t, func(c *conversation) {
		w := xdstest.Wrap(xdstest.Route("inside", "a"), "v7")
		w.Name, w.Aliases, w.Ttl = "outside", []string{"alias"}, durationpb.New(time.Minute)
		c.cp.Set(w)
		c.client.Subscribe(xds.RouteType, "alias")
		c.holds(xds.RouteType, "outside")
		got := c.client.Held(xds.RouteType)["outside"]
		if got.GetVersion() != "v7" || got.GetTtl().AsDuration() != time.Minute || got.GetAliases()[0] != "alias" {
			c.Fatalf("got %v", got)
		}
	})
}

func TestResendRepeatsWhatDidNotChange(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""), xdstest.CLA("a"))
		c.client.Subscribe(xds.ClusterType)
		c.client.Subscribe(xds.EndpointType, "a")
		synctest.Wait()
		c.cp.Resend(xds.EndpointType)
		c.answers(2, "1 EDS version=1 nonce=n3 [a]")
		c.cp.Resend()
		c.answers(3, "1 CDS version=1 nonce=n4 [a]", "1 EDS version=1 nonce=n5 [a]")
	})
}

func TestResendAllIgnoresWhatTheClientHas(t *testing.T) {
	config := xdstest.Config{ResendAll: true, Identifier: "all"}
	converse(t, config, xdstest.ClientConfig{Protocol: xdstest.Delta}, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""), xdstest.Cluster("b", ""))
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		c.cp.Set(xdstest.Cluster("b", "changed"))
		c.answers(1, "1 CDS version=2 nonce=n2 [a b]")
		c.reconnect()
		c.answers(2, "2 CDS version=2 nonce=n3 [a b]")
		if got := c.client.Responses()[0].Identifier; got != "all" {
			c.Fatalf("identifier %q", got)
		}
	})
}

func TestEmptyVersionsNeverMatch(t *testing.T) {
	config := xdstest.Config{EmptyVersions: true}
	converse(t, config, xdstest.ClientConfig{Protocol: xdstest.Delta}, func(c *conversation) {
		c.cp.Set(xdstest.Cluster("a", ""), xdstest.Cluster("b", ""))
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		c.versions(xds.ClusterType, map[string]string{"a": "", "b": ""})
		c.cp.Set(xdstest.Cluster("b", "changed"))
		c.answers(1, "1 CDS version=2 nonce=n2 [b]")
		c.cp.Remove(xds.ClusterType, "a")
		synctest.Wait()
		c.reconnect()
		c.answers(3, "2 CDS version=3 nonce=n4 [b]")
	})
}

func TestMetadataAndNodeAreLogged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var pipe xdstest.Pipe
		cp := xdstest.New(xdstest.Config{})
		cp.Serve(pipe.Listen())
		defer cp.Stop()
		conn, err := pipe.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := xdstest.NewClient(conn, xdstest.ClientConfig{Node: &corev3.Node{Id: "first"}})
		defer client.Close()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-token", "secret")
		client.Subscribe(xds.ClusterType)
		if err := client.Connect(ctx); err != nil {
			t.Fatal(err)
		}
		e, err := cp.Await(t.Context(), func(e xdstest.Event) bool { return e.Type == xds.ClusterType })
		if err != nil {
			t.Fatal(err)
		}
		if e.Node.GetId() != "first" || e.Metadata.Get("x-token")[0] != "secret" {
			t.Fatalf("node %v, metadata %v", e.Node, e.Metadata)
		}
		client.SetNode(&corev3.Node{Id: "second"})
		if err := client.Reconnect(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := cp.Await(t.Context(), func(e xdstest.Event) bool { return e.Node.GetId() == "second" }); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWaitThatEndsQuotesTheLog(t *testing.T) {
	inBoth(t, func(c *conversation) {
		c.client.Subscribe(xds.ClusterType)
		synctest.Wait()
		never := func() bool { return false }
		err := c.cp.Wait(ended(), never)
		if err == nil || !strings.Contains(err.Error(), "waited enough") || !strings.Contains(err.Error(), "ack CDS") {
			c.Fatalf("got %v", err)
		}
		err = c.client.Wait(ended(), never)
		if err == nil || !strings.Contains(err.Error(), "1 CDS version=0 nonce=n1") {
			c.Fatalf("got %v", err)
		}
		if _, err := c.cp.Await(ended(), func(xdstest.Event) bool { return false }); err == nil {
			c.Fatal("Await found what never happened")
		}
	})
}

func TestPipeWithoutAListenerRefuses(t *testing.T) {
	var pipe xdstest.Pipe
	if _, err := pipe.DialContext(t.Context(), ""); err != xdstest.ErrRefused {
		t.Fatalf("got %v, want ErrRefused", err)
	}
}

func TestResourceWithoutANamePanics(t *testing.T) {
	for name, set := range map[string]func(){
		"body":     func() { xdstest.New(xdstest.Config{}).Set(&anypb.Any{TypeUrl: unknownType}) },
		"wrapper":  func() { xdstest.New(xdstest.Config{}).Set(&discoveryv3.Resource{}) },
		"endpoint": func() { xdstest.CLA("a", "nowhere") },
		"port":     func() { xdstest.CLA("a", "127.0.0.1:x") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Fatal("no panic")
				}
			}()
			set()
		})
	}
}

func TestRealSocketsWork(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xds.sock")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	cp := xdstest.New(xdstest.Config{})
	cp.Set(xdstest.Listener("l", 1, "r"))
	cp.Serve(lis)
	defer cp.Stop()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: xdstest.Delta})
	defer client.Close()
	client.Subscribe(xds.ListenerType)
	if err := client.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := client.Wait(t.Context(), func() bool { return client.Held(xds.ListenerType)["l"] != nil }); err != nil {
		t.Fatal(err)
	}
}
