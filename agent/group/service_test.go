package group_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// service is a discovery service of one type.
type service struct{ name, sotw, delta, typeURL string }

func (s service) method(p xdstest.Protocol) string {
	name := s.sotw
	if p == xdstest.Delta {
		name = s.delta
	}
	return "/" + s.name + "/" + name
}

var perType = []service{
	{"envoy.service.cluster.v3.ClusterDiscoveryService", "StreamClusters", "DeltaClusters", xds.ClusterType},
	{"envoy.service.endpoint.v3.EndpointDiscoveryService", "StreamEndpoints", "DeltaEndpoints", xds.EndpointType},
	{"envoy.service.listener.v3.ListenerDiscoveryService", "StreamListeners", "DeltaListeners", xds.ListenerType},
	{"envoy.service.route.v3.RouteDiscoveryService", "StreamRoutes", "DeltaRoutes", xds.RouteType},
	{"envoy.service.route.v3.ScopedRoutesDiscoveryService", "StreamScopedRoutes", "DeltaScopedRoutes", xds.ScopedRouteType},
	{"envoy.service.route.v3.VirtualHostDiscoveryService", "", "DeltaVirtualHosts", xds.VirtualHostType},
	{"envoy.service.secret.v3.SecretDiscoveryService", "StreamSecrets", "DeltaSecrets", xds.SecretType},
	{"envoy.service.runtime.v3.RuntimeDiscoveryService", "StreamRuntime", "DeltaRuntime", xds.RuntimeType},
	{"envoy.service.extension.v3.ExtensionConfigDiscoveryService", "StreamExtensionConfigs", "DeltaExtensionConfigs", xds.ExtensionConfigType},
}

// protocol.md V10, 8.1 to 8.3.
func TestEveryServiceServesItsType(t *testing.T) {
	for _, s := range perType {
		t.Run(xds.Short(s.typeURL), func(t *testing.T) {
			inAllForms(t, xdstest.Config{}, func(r *rig) {
				if r.below == xdstest.SotW && s.sotw == "" || r.above == xdstest.SotW && s.typeURL == xds.VirtualHostType {
					return // VHDS exists in Delta only (protocol.md 8.3)
				}
				r.cp.Set(&discoveryv3.Resource{Name: "n", Resource: xdstest.Unknown(s.typeURL, "n")})
				c := r.client(xdstest.ClientConfig{Method: s.method(r.below)})
				name := "n"
				if xds.Info(s.typeURL).LegacyWildcard {
					c.Subscribe(s.typeURL)
				} else {
					c.Subscribe(s.typeURL, name)
				}
				r.quiet()
				r.holds(c, s.typeURL, "n")
			})
		})
	}
}

func TestAServiceOfOneTypeRefusesAnother(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		c := r.client(xdstest.ClientConfig{Method: perType[0].method(r.below)})
		c.Subscribe(xds.ListenerType)
		r.quiet()
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), "on the service of CDS") {
			r.Errorf("the stream ended with %v", err)
		}
	})
}

// protocol.md V10: Envoy opens a stream for each cluster. (Two hundred are tried in
// downstream, outside of a bubble: the race detector of Go 1.26 does not bear as
// many timers in one.)
func TestTheStreamsOfAllClustersShareOneUpstreamSubscription(t *testing.T) {
	const streams = 60
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		clients := make([]*xdstest.Client, streams)
		for i := range clients {
			name := fmt.Sprintf("c%03d", i)
			r.cp.Set(xdstest.CLA(name, "127.0.0.1:1"))
			clients[i] = r.client(xdstest.ClientConfig{Method: perType[1].method(r.below)})
			clients[i].Subscribe(xds.EndpointType, name)
		}
		r.pass(2 * time.Second)
		for i, c := range clients {
			r.holds(c, xds.EndpointType, fmt.Sprintf("c%03d", i))
		}
		if now, ever := r.cp.Streams(); now != 1 || ever != 1 {
			r.Errorf("%d streams upstream, %d ever", now, ever)
		}
		r.cp.Set(xdstest.CLA("c007", "127.0.0.1:2"))
		r.quiet()
		for i, c := range clients {
			want := 1
			if i == 7 {
				want = 2
			}
			if got := len(c.Of(xds.EndpointType)); got != want {
				r.Fatalf("stream %d got %d responses, want %d", i, got, want)
			}
		}
	})
}

// post makes a REST request through the pipe.
func (r *rig) post(kind string, req *discoveryv3.DiscoveryRequest) (int, []byte) {
	r.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, addr string) (net.Conn, error) { return r.down.DialContext(ctx, addr) },
	}}
	body, err := protojson.Marshal(req)
	if err != nil {
		r.Fatal(err)
	}
	resp, err := client.Post("http://xds/v3/discovery:"+kind, "application/json", strings.NewReader(string(body)))
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return resp.StatusCode, b
}

func (r *rig) poll(version string, names ...string) *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{
		Node: nodeXdstest(), VersionInfo: version, ResourceNames: names,
	}
}

// protocol.md 9.1: a restarted agent believes the version of a poll, for every type.
func TestAPollSaysWhatItAcceptedToAnAgentThatForgot(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.below == xdstest.Delta {
			return // REST has one form
		}
		r.mesh()
		for kind, typeURL := range map[string]string{"clusters": xds.ClusterType, "routes": xds.RouteType} {
			names := map[string][]string{"routes": {"r1"}}[kind]
			r.pass(time.Second)
			_, body := r.post(kind, r.poll("", names...))
			var resp discoveryv3.DiscoveryResponse
			if err := protojson.Unmarshal(body, &resp); err != nil {
				r.Fatalf("%s %v", body, err)
			}
			r.restartAgent()
			r.pass(time.Second)
			if status, body := r.post(kind, r.poll(resp.VersionInfo, names...)); status != http.StatusNotModified {
				r.Fatalf("%s: the version is current: %d %s", kind, status, body)
			}
			if got := r.group.Cache().Resources(typeURL); got[0].Status != xds.Acked {
				r.Errorf("%s: %v", kind, got[0].Status)
			}
		}
	})
}

// protocol.md 9.2 to 9.4.
func TestRESTIsAnsweredOnTheSameSocket(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.below == xdstest.Delta {
			return // REST has one form
		}
		r.cp.Hold(xds.ClusterType)
		if status, body := r.post("clusters", r.poll("")); status != http.StatusServiceUnavailable || strings.Contains(string(body), "{") {
			r.Fatalf("while nothing is known: %d %s", status, body)
		}
		r.mesh()
		r.cp.Release(xds.ClusterType)
		r.pass(time.Second)
		status, body := r.post("clusters", r.poll(""))
		var resp discoveryv3.DiscoveryResponse
		if err := protojson.Unmarshal(body, &resp); status != http.StatusOK || err != nil {
			r.Fatalf("%d %s %v", status, body, err)
		}
		if len(resp.Resources) != 1 || resp.VersionInfo == "" || resp.TypeUrl != xds.ClusterType {
			r.Fatalf("got %v", &resp)
		}
		if status, body := r.post("clusters", r.poll(resp.VersionInfo)); status != http.StatusNotModified || len(body) > 0 {
			r.Fatalf("the version is current: %d %s", status, body)
		}
		// A poll with that version ACKs it (9.1).
		if got := r.group.Cache().Resources(xds.ClusterType); got[0].Status != xds.Acked {
			r.Errorf("standing: %v", got[0].Status)
		}
		r.cp.Set(xdstest.Cluster("c2", ""))
		r.quiet()
		if status, _ := r.post("clusters", r.poll(resp.VersionInfo)); status != http.StatusOK {
			r.Fatalf("after a change: %d", status)
		}
		status, body = r.post("endpoints", r.poll("", "c1"))
		if status != http.StatusOK || !strings.Contains(string(body), "127.0.0.1") {
			r.Fatalf("endpoints: %d %s", status, body)
		}
	})
}

func TestRESTRefusesWhatItCannotServe(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.below == xdstest.Delta {
			return
		}
		for kind, want := range map[string]int{"secrets": http.StatusForbidden, "nonsense": http.StatusNotFound} {
			if status, body := r.post(kind, r.poll("")); status != want {
				r.Errorf("%s: %d %s", kind, status, body)
			}
		}
		if status, body := r.post("clusters", &discoveryv3.DiscoveryRequest{}); status != http.StatusBadRequest {
			r.Errorf("without a node: %d %s", status, body)
		}
		wrong := r.poll("")
		wrong.TypeUrl = xds.ListenerType
		if status, body := r.post("clusters", wrong); status != http.StatusBadRequest {
			r.Errorf("with another type: %d %s", status, body)
		}
		// protocol.md 9.5: a resource that JSON cannot express is an error that names it.
		route := xdstest.Route("r1", "c1")
		route.TypedPerFilterConfig = map[string]*anypb.Any{"f": xdstest.Unknown("type.googleapis.com/not.Linked", "x")}
		r.cp.Set(route)
		if status, body := r.post("routes", r.poll("", "r1")); status != http.StatusInternalServerError || !strings.Contains(string(body), "not.Linked") {
			r.Errorf("an unknown type inside: %d %s", status, body)
		}
	})
}

// protocol.md 9.3: with a hold, a poll is answered when something changes.
func TestALongPollIsAnsweredWhenSomethingChanges(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.below == xdstest.Delta {
			return
		}
		r.stopAgent()
		r.restHold = time.Minute
		r.startAgent()
		r.mesh()
		status, body := r.post("clusters", r.poll(""))
		var resp discoveryv3.DiscoveryResponse
		if err := protojson.Unmarshal(body, &resp); status != http.StatusOK || err != nil {
			r.Fatalf("%d %s %v", status, body, err)
		}
		r.pass(time.Second)
		begun := time.Now()
		go func() {
			time.Sleep(20 * time.Second)
			r.cp.Set(xdstest.Cluster("c2", ""))
		}()
		status, _ = r.post("clusters", r.poll(resp.VersionInfo))
		if took := time.Since(begun); status != http.StatusOK || took < 20*time.Second || took > 21*time.Second {
			r.Errorf("%d after %s", status, took)
		}
		begun = time.Now()
		status, _ = r.post("endpoints", r.poll("", "c1"))
		if status != http.StatusOK {
			r.Fatalf("endpoints: %d", status)
		}
		if took := time.Since(begun); took > time.Second {
			r.Errorf("what is known was held for %s", took)
		}
	})
}

func TestFetchIsAnsweredOnce(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		if r.below == xdstest.Delta {
			return
		}
		r.mesh()
		conn, err := r.down.Dial()
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		var resp discoveryv3.DiscoveryResponse
		err = conn.Invoke(r.Context(), "/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters", r.poll(""), &resp)
		if err != nil || len(resp.Resources) != 1 {
			r.Fatalf("%v %v", &resp, err)
		}
	})
}

// With reflection grpcurl shows what is in an answer, though hardly any of Envoy's messages
// is linked into the agent.
func TestReflectionKnowsTheServicesAndWhatIsInTheirAnswers(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		conn, err := r.down.Dial()
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		stream, err := reflectiongrpc.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			r.Fatal(err)
		}
		for symbol, file := range map[string]string{
			"envoy.service.discovery.v3.AggregatedDiscoveryService": "envoy/service/discovery/v3/ads.proto",
			"envoy.extensions.filters.http.lua.v3.Lua":              "envoy/extensions/filters/http/lua/v3/lua.proto",
		} {
			ask := &reflectiongrpc.ServerReflectionRequest{MessageRequest: &reflectiongrpc.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol}}
			if err := stream.Send(ask); err != nil {
				r.Fatal(err)
			}
			resp, err := stream.Recv()
			if err != nil {
				r.Fatal(err)
			}
			var paths []string
			for _, raw := range resp.GetFileDescriptorResponse().GetFileDescriptorProto() {
				var decoded descriptorpb.FileDescriptorProto
				if err := proto.Unmarshal(raw, &decoded); err != nil {
					r.Fatal(err)
				}
				paths = append(paths, decoded.GetName())
			}
			if !slices.Contains(paths, file) {
				r.Errorf("%s: got %v, %v", symbol, paths, resp.GetErrorResponse())
			}
		}
	})
}

func TestAnUnknownTypePassesThroughByteForByte(t *testing.T) {
	const unknown = "type.googleapis.com/example.v9.Novelty"
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		sent := xdstest.Unknown(unknown, "n")
		r.cp.Set(&discoveryv3.Resource{Name: "n", Resource: sent})
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(unknown, "n")
		r.quiet()
		got := c.Held(unknown)["n"].GetResource()
		if !proto.Equal(got, sent) || !slices.Equal(got.GetValue(), sent.GetValue()) {
			r.Fatalf("got %v, want %v", got, sent)
		}
	})
}
