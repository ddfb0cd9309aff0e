package istio

import (
	"context"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// authorizer decides about requests that are asked about. The header x-ext says how: deny; deny:STATUS; delay:D; anything
// else, and no header, allows. Connections that are not HTTP are allowed unless they are to deniedPort.
type authorizer struct {
	authv3.UnimplementedAuthorizationServer
	name       string
	deniedPort func() uint32
}

// startAuthorizers starts an authorizer that speaks HTTP, one that speaks gRPC, and a second one that speaks HTTP and
// denies everything.
func (b *backends) startAuthorizers(t *testing.T) {
	t.Helper()
	for _, name := range []string{"ext1", "ext2"} {
		lis := b.listen(t, name)
		a := &authorizer{name: name}
		srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(a.serve)}
		go func() { _ = srv.Serve(lis) }()
		t.Cleanup(func() { _ = srv.Close() })
	}
	srv := grpc.NewServer()
	authv3.RegisterAuthorizationServer(srv, &authorizer{name: "ext3", deniedPort: func() uint32 { return uint32(b.ports["t2"]) }})
	lis := b.listen(t, "ext3")
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
}

// portOf returns the port of a URL.
func portOf(t *testing.T, text string) int {
	t.Helper()
	u, err := url.Parse(text)
	check(t, err)
	n, err := strconv.Atoi(u.Port())
	check(t, err)
	return n
}

// decide returns the status that a request gets; 200 allows it.
func (a *authorizer) decide(ext string) int {
	verb, value, _ := strings.Cut(ext, ":")
	switch {
	case verb == "deny" && value != "":
		var code int
		_, _ = fmt.Sscan(value, &code)
		return code
	case verb == "deny" || a.name == "ext2":
		return http.StatusForbidden
	case verb == "delay":
		d, _ := time.ParseDuration(value)
		time.Sleep(d)
	}
	return http.StatusOK
}

// serve answers over HTTP. The answer says what was asked.
func (a *authorizer) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var names []string
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-") && name != "x-request-id" && name != "x-tag" && !strings.HasPrefix(name, "x-envoy") && !strings.HasPrefix(name, "x-b3") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	h := w.Header()
	h.Set("X-Ext-Saw", fmt.Sprintf("%s %s %s %q", r.Method, r.URL.Path, strings.Join(names, ","), body))
	h.Set("X-Ext-User", a.name)
	h.Set("X-Other", "not to be passed on")
	w.WriteHeader(a.decide(r.Header.Get("X-Ext")))
	fmt.Fprintf(w, "%s says so", a.name)
}

// Check answers over gRPC.
func (a *authorizer) Check(_ context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	attributes := r.GetAttributes()
	req := attributes.GetRequest().GetHttp()
	code := a.decide(req.GetHeaders()["x-ext"])
	if req == nil && attributes.GetDestination().GetAddress().GetSocketAddress().GetPortValue() == a.deniedPort() {
		code = http.StatusForbidden
	}
	saw := &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: "x-ext-saw", Value: fmt.Sprintf("%s %s %q", req.GetMethod(), req.GetPath(), req.GetBody())}}
	if code != http.StatusOK {
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.PermissionDenied)}, HttpResponse: &authv3.CheckResponse_DeniedResponse{
			DeniedResponse: &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode(code)}, Headers: []*corev3.HeaderValueOption{saw}, Body: a.name + " says so"},
		}}, nil
	}
	return &authv3.CheckResponse{Status: &status.Status{}, HttpResponse: &authv3.CheckResponse_OkResponse{
		OkResponse: &authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{saw}},
	}}, nil
}

// parseECDSA returns the numbers of a signature.
func parseECDSA(der []byte) (r, s *big.Int, err error) {
	var signature struct{ R, S *big.Int }
	rest, err := asn1.Unmarshal(der, &signature)
	if err == nil && len(rest) > 0 {
		err = errors.New("the signature has something after it")
	}
	return signature.R, signature.S, err
}

// serveOwn starts a backend for a case alone, and returns its port: "own" speaks HTTP, "tcp" takes lines.
func (b *backends) serveOwn(t *testing.T, kind string) int {
	t.Helper()
	lis, err := net.Listen("tcp", fmt.Sprintf(":%d", freePort(t)))
	check(t, err)
	t.Cleanup(func() { _ = lis.Close() })
	if kind == "own" {
		b.serveHTTP(t, kind, lis, nil)
		return lis.Addr().(*net.TCPAddr).Port
	}
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go serveTCP(conn, kind)
		}
	}()
	return lis.Addr().(*net.TCPAddr).Port
}
