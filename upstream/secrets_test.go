package upstream

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	plantedToken  = "PLANTED-TOKEN-0123456789"
	plantedHeader = "PLANTED-HEADER-0123456789"
)

// echo rejects a stream with an error that contains what the client sent, control characters, and
// much of both.
type echo struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

func (echo) DeltaAggregatedResources(s grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	said := strings.Join(md["authorization"], "") + "|" + strings.Join(md["x-key"], "")
	return status.Error(codes.PermissionDenied, "\x1b[31mwho is "+said+"?\n"+strings.Repeat(said, 2000))
}

// A control plane may repeat in an error what it was sent, next to any other text.
func TestAnUpstreamsErrorIsOneLineWithoutTheTokenThatItWasSent(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(plantedToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	headers := map[string]string{"x-key": plantedHeader}
	security := dial.Security{Plaintext: true, TokenFile: token}

	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxHeaderListSize(1 << 20))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, echo{})
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	ads := source(t, Config{Addr: lis.Addr().String(), Form: xds.Delta, Security: security, Headers: headers})
	failed := ads.Run(t.Context(), everyCluster(), func() error { return nil })
	presentable(t, "ADS", failed.Error(), "PermissionDenied")
	if status.Code(failed) != codes.PermissionDenied {
		t.Errorf("the code is lost: %v", status.Code(failed))
	}

	poll := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said := r.Header.Get("Authorization") + "|" + r.Header.Get("X-Key")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("\x1b[31mwho is " + said + "?\n" + strings.Repeat(said, 2000)))
	}))
	defer poll.Close()
	var log bytes.Buffer
	rest, err := NewREST(Config{Addr: poll.URL, Security: security, Headers: headers, Log: slog.New(slog.NewJSONHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	// The server rejects every request, so that the attempt ends.
	presentable(t, "REST", rest.Run(t.Context(), everyCluster(), func() error { return nil }).Error(), "403")
	line, _, _ := strings.Cut(log.String(), "\n")
	presentable(t, "REST", line, "403")
}

func presentable(t *testing.T, where, said, want string) {
	t.Helper()
	if len(said) > redact.MaxReason+300 || strings.ContainsAny(said, "\x1b\n") {
		t.Errorf("%s: %d bytes, or several lines, or control characters: %.300q", where, len(said), said)
	}
	if !strings.Contains(said, want) || !strings.Contains(said, "who is") || !strings.Contains(said, redact.Marker) {
		t.Errorf("%s: what the server says is not there: %.300q", where, said)
	}
	for _, planted := range []string{plantedToken, plantedHeader} {
		if strings.Contains(said, planted[:16]) {
			t.Errorf("%s shows what was sent: %.300q", where, said)
		}
	}
}

// If a header has two values, the server may use the client's.
func TestTheAgentsHeadersReplaceThoseOfAClient(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(plantedToken), 0o600); err != nil {
		t.Fatal(err)
	}
	ads := source(t, Config{Addr: "192.0.2.1:1", Security: dial.Security{Plaintext: true, TokenFile: token}, Headers: map[string]string{"ClusterID": "mine"}})
	ctx, err := ads.metadata(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer attacker", "clusterid", "theirs", "x-acme", "kept"))
	if err != nil {
		t.Fatal(err)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	want := metadata.Pairs("authorization", "Bearer "+plantedToken, "clusterid", "mine", "x-acme", "kept")
	if !reflect.DeepEqual(md, want) {
		t.Errorf("got %v, want %v", md, want)
	}
}
