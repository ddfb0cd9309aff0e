package probe

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

// istioThreshold is pilot-agent's default of both thresholds. Istio's documentation says 3 for failures, and pilot-agent 1.31
// has 1.
const istioThreshold = 1

// FromIstio returns what the readinessProbe of Istio's ProxyConfig says, with pilot-agent's defaults. A probe without a host is
// sent to host, from an address of this host from which Envoy does not redirect it; the zero value for any. The error names
// the field that is wrong.
func FromIstio(p *networking.ReadinessProbe, host string, from netip.Addr) (Config, error) {
	var cfg Config
	for _, n := range []struct {
		field string
		value int32
	}{
		{"initialDelaySeconds", p.GetInitialDelaySeconds()}, {"timeoutSeconds", p.GetTimeoutSeconds()}, {"periodSeconds", p.GetPeriodSeconds()},
		{"successThreshold", p.GetSuccessThreshold()}, {"failureThreshold", p.GetFailureThreshold()},
	} {
		if n.value < 0 {
			return cfg, fmt.Errorf("%s is %d: want at least 0", n.field, n.value)
		}
	}
	cfg.InitialDelay = time.Duration(p.GetInitialDelaySeconds()) * time.Second
	cfg.Timeout = time.Duration(cmp.Or(p.GetTimeoutSeconds(), 1)) * time.Second
	cfg.Period = time.Duration(cmp.Or(p.GetPeriodSeconds(), 10)) * time.Second
	cfg.Successes, cfg.Failures = int(cmp.Or(p.GetSuccessThreshold(), istioThreshold)), int(cmp.Or(p.GetFailureThreshold(), istioThreshold))
	var err error
	cfg.Check, err = checkOf(p, host, from)
	return cfg, err
}

// checkOf returns the Check of a readinessProbe.
func checkOf(p *networking.ReadinessProbe, host string, from netip.Addr) (Check, error) {
	// dialTo returns where a probe is sent, and how; at is the host of the probe, "" for none.
	dialTo := func(at string) (string, Dialer) {
		if at != "" {
			return at, DialFrom(netip.Addr{})
		}
		return host, DialFrom(from)
	}
	switch method := p.GetHealthCheckMethod().(type) {
	case *networking.ReadinessProbe_HttpGet:
		get := method.HttpGet
		if err := checkPort("httpGet", get.GetPort()); err != nil {
			return Check{}, err
		}
		scheme := strings.ToLower(cmp.Or(get.GetScheme(), "http"))
		if scheme != "http" && scheme != "https" {
			return Check{}, fmt.Errorf("httpGet.scheme is %q: want HTTP or HTTPS", get.GetScheme())
		}
		header := make(http.Header)
		for _, h := range get.GetHttpHeaders() {
			header.Add(h.GetName(), h.GetValue())
		}
		at, dial := dialTo(get.GetHost())
		return HTTP(dial, urlOf(scheme, join(at, get.GetPort()), get.GetPath()), header), nil
	case *networking.ReadinessProbe_TcpSocket:
		if err := checkPort("tcpSocket", method.TcpSocket.GetPort()); err != nil {
			return Check{}, err
		}
		at, dial := dialTo(method.TcpSocket.GetHost())
		return TCP(dial, join(at, method.TcpSocket.GetPort())), nil
	case *networking.ReadinessProbe_Grpc:
		if err := checkPort("grpc", method.Grpc.GetPort()); err != nil {
			return Check{}, err
		}
		at, dial := dialTo("")
		return GRPC(dial, join(at, method.Grpc.GetPort()), method.Grpc.GetService()), nil
	case *networking.ReadinessProbe_Exec:
		if len(method.Exec.GetCommand()) == 0 {
			return Check{}, errors.New("exec.command is missing")
		}
		return Exec(method.Exec.GetCommand()), nil
	}
	return Check{}, errors.New("it has no method: want httpGet, tcpSocket, grpc or exec")
}

func checkPort(method string, port uint32) error {
	if port < 1 || port > math.MaxUint16 {
		return fmt.Errorf("%s.port is %d: want a number from 1 to 65535", method, port)
	}
	return nil
}

// urlOf returns a URL. As the kubelet does, it takes a path that cannot be parsed as it is.
func urlOf(scheme, host, path string) *url.URL {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host, u.User = scheme, host, nil
	return u
}
