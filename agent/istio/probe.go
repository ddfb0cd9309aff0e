package istio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-xds/holdfast/agent/probe"
)

// maxProbeBody bounds the body of an application's answer that is passed on, in bytes: of a longer one the kubelet reads as much.
const maxProbeBody = 10 << 10

// maxProbesOfOne bounds the probes and lifecycle handlers in progress from one address. The kubelet needs one for each container
// and kind; an application that passes them on to the agent, without their headers, would otherwise never end.
const maxProbesOfOne = 128

// probeUserAgent is sent if the kubelet sent none.
const probeUserAgent = "kube-probe"

// withinHost follows redirects as the kubelet does, but to no port of the proxy, such as Envoy's admin interface, which belong
// to no application.
func withinHost(next *http.Request, before []*http.Request) error {
	if err := probe.WithinHost(next, before); err != nil {
		return err
	}
	port, _ := strconv.Atoi(next.URL.Port()) // 0 for none
	if whose, is := reserved[port]; is {
		return fmt.Errorf("the answer is a redirect to port %d, which belongs to the proxy (%s)", port, whose)
	}
	return nil
}

// probe serves a probe of the kubelet: it probes the application as the kubelet would have.
func (s *Server) probe(w http.ResponseWriter, r *http.Request) {
	if s.isOwn(w, r) {
		return
	}
	release, err := s.probing.take(r.RemoteAddr)
	if err != nil {
		text(w, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	defer release()
	p := s.cfg.probers[r.URL.Path]
	if p == nil {
		text(w, http.StatusNotFound, fmt.Sprintf("%s has no probe %s. istiod's webhook leaves out a probe whose named port the container does not declare: "+
			"declare the port, or give its number\n", probersVar, r.URL.Path))
		return
	}
	// A lifecycle handler may take longer than the listener allows for other answers.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	ctx := r.Context() // ends when the kubelet closes the connection
	if p.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("no answer within the probe's timeout of %s", p.timeout))
		defer cancel()
	}
	addr := net.JoinHostPort(s.cfg.destination, strconv.Itoa(p.port))
	switch {
	case p.tcp:
		err = probe.AskTCP(ctx, probe.DialFrom(s.cfg.source), addr)
	case p.grpc:
		err = probe.AskGRPC(ctx, probe.DialFrom(s.cfg.source), addr, p.service, userAgent(r))
	default:
		err = s.probeHTTP(ctx, w, r, p, addr)
		if err == nil {
			return // answered
		}
	}
	if err == nil {
		text(w, http.StatusOK, "ok\n")
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause // says more than the error of the connection
	}
	s.parts.Log.Debug("probe of the application failed", "name", r.URL.Path, "err", err)
	text(w, http.StatusInternalServerError, fmt.Sprintf("probe of %s: %v\n", addr, err))
}

func userAgent(r *http.Request) string {
	if ua := r.Header.Get("User-Agent"); ua != "" {
		return ua
	}
	return probeUserAgent
}

// hopByHop are the headers that concern a connection.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// probeHTTP passes on the application's answer. If it returns an error, nothing was answered.
func (s *Server) probeHTTP(ctx context.Context, w http.ResponseWriter, r *http.Request, p *prober, addr string) error {
	to := *p.http
	to.Host = addr
	req := (&http.Request{Method: http.MethodGet, URL: &to, Header: r.Header.Clone(), Host: hostOf(r, p.port)}).WithContext(ctx)
	for _, name := range hopByHop {
		req.Header.Del(name)
	}
	req.Header.Set("User-Agent", userAgent(r))
	req.Header.Set(ownHeader, s.mark)
	resp, err := s.probes.Do(req)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err // without the URL, which the answer has
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	switch code := resp.StatusCode; {
	case code < 200 || code > 599:
		return fmt.Errorf("the answer has the status %d", code)
	case code >= 300 && code < 400:
		// A redirect to another host is a success for the kubelet, which must not follow it to there.
		text(w, http.StatusOK, "redirected\n")
	default:
		text(w, code, string(body))
	}
	return nil
}

// hostOf returns the Host of a probe: the one that the kubelet sent, because a probe may have a header
// Host, with the port of the application in place of this listener's.
func hostOf(r *http.Request, port int) string {
	host, received, err := net.SplitHostPort(r.Host)
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if err != nil || local == nil {
		return r.Host
	}
	if _, own, _ := net.SplitHostPort(local.String()); received != own {
		return r.Host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
