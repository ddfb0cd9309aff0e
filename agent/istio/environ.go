package istio

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The variables that istiod's webhook and its template set.
const (
	probersVar     = "ISTIO_KUBE_APP_PROBERS"
	annotationsVar = "ISTIO_PROMETHEUS_ANNOTATIONS"
	addressVar     = "INSTANCE_IP"
	legacyVar      = "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"
	statsPortVar   = "ENVOY_PROMETHEUS_PORT"
	dnsVar         = "ISTIO_META_DNS_CAPTURE"
)

const defaultStatsPort = 15090

// FromEnv reads the variables of the webhook. statusPort is the port of the health listener.
//
// A variable that cannot be used is an error, so that the agent does not start, like any other bad setting:
// without the probes that it was to serve the kubelet would end the application or never send it requests,
// and the reason would be hard to find. pilot-agent does not start either.
func FromEnv(getenv func(string) string, statusPort int) (*Config, error) {
	c := &Config{}
	var err error
	if capture, _ := strconv.ParseBool(getenv(dnsVar)); capture {
		return nil, fmt.Errorf("%s is %s: istio-init or the CNI plugin then leads the pod's DNS to pilot-agent's DNS proxy, which holdfast does not have, so that no name would be resolved: "+
			"set it to false for this pod (deploy/istio/values.yaml does), or leave the pod to pilot-agent", dnsVar, getenv(dnsVar))
	}
	if c.probers, err = parseProbers(getenv(probersVar)); err != nil {
		return nil, fmt.Errorf("%s: %w. istiod's webhook writes this variable from the probes of the pod: correct them, or annotate the pod with "+
			`sidecar.istio.io/rewriteAppHTTPProbers: "false"`, probersVar, err)
	}
	if err := c.readDestination(getenv); err != nil {
		return nil, err
	}
	if c.applications, err = parseAnnotations(getenv(annotationsVar), statusPort); err != nil {
		return nil, fmt.Errorf("%s: %w. istiod's webhook writes this variable from the annotations prometheus.io/… of the pod: correct them, or annotate the pod with "+
			`prometheus.istio.io/merge-metrics: "false"`, annotationsVar, err)
	}
	port := defaultStatsPort
	if text := getenv(statsPortVar); text != "" {
		if port, err = parsePort(text); err != nil {
			return nil, fmt.Errorf("%s: %w", statsPortVar, err)
		}
	}
	c.envoy = fmt.Sprintf("http://127.0.0.1:%d/stats/prometheus", port)
	return c, nil
}

// readDestination sets where probes are sent, and from which address.
func (c *Config) readDestination(getenv func(string) string) error {
	legacy := false
	if text := getenv(legacyVar); text != "" {
		var err error
		if legacy, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%s: %q: want true or false", legacyVar, text)
		}
	}
	text := getenv(addressVar)
	addr, err := netip.ParseAddr(text)
	switch {
	case text != "" && err != nil:
		return fmt.Errorf("%s: %q: want the pod's IP address", addressVar, text)
	case text == "" && len(c.probers) > 0 && !legacy:
		return fmt.Errorf("%s is not set: give the container the pod's IP address (the field status.podIP), to which the probes of %s are sent", addressVar, probersVar)
	}
	c.destination, c.source = text, inboundIPv4
	if addr = addr.Unmap(); addr.Is6() && !addr.IsLinkLocalUnicast() {
		c.source = inboundIPv6
	}
	if legacy {
		c.destination = "localhost"
	}
	return nil
}

// prober is what the webhook has replaced in the pod: a probe or a lifecycle handler of one container. One
// of http, tcp and grpc is set.
type prober struct {
	http    *url.URL // without its host
	port    int
	tcp     bool
	grpc    bool
	service string        // of gRPC's health checks
	timeout time.Duration // 0 for none
}

// defaultTimeout is that of Kubernetes.
const defaultTimeout = time.Second

var proberPath = regexp.MustCompile(`^/(app-health/[^/]+/(livez|readyz|startupz)|app-lifecycle/[^/]+/(prestopz|poststartz))$`)

// parseProbers reads a map from paths to Kubernetes' probes, as JSON; "" is none.
func parseProbers(text string) (map[string]*prober, error) {
	if text == "" {
		return nil, nil
	}
	var probers map[string]*struct {
		HTTPGet *struct {
			Path   string          `json:"path"`
			Port   json.RawMessage `json:"port"`
			Scheme string          `json:"scheme"`
		} `json:"httpGet"`
		TCPSocket *struct {
			Port json.RawMessage `json:"port"`
		} `json:"tcpSocket"`
		GRPC *struct {
			Port    json.RawMessage `json:"port"`
			Service string          `json:"service"`
		} `json:"grpc"`
		TimeoutSeconds int32 `json:"timeoutSeconds"`
	}
	if err := json.Unmarshal([]byte(text), &probers); err != nil {
		return nil, invalidJSON(err)
	}
	parsed := make(map[string]*prober, len(probers))
	for path, from := range probers {
		if !proberPath.MatchString(path) {
			return nil, fmt.Errorf("%q is not a path of a probe: want /app-health/CONTAINER/livez, readyz or startupz, or /app-lifecycle/CONTAINER/prestopz or poststartz", path)
		}
		p, kinds := &prober{}, 0
		var port json.RawMessage
		if from != nil && from.HTTPGet != nil {
			scheme, err := parseScheme(from.HTTPGet.Scheme)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			p.http, port = probeURL(scheme, from.HTTPGet.Path), from.HTTPGet.Port
			kinds++
		}
		if from != nil && from.TCPSocket != nil {
			p.tcp, port = true, from.TCPSocket.Port
			kinds++
		}
		if from != nil && from.GRPC != nil {
			p.grpc, p.service, port = true, from.GRPC.Service, from.GRPC.Port
			kinds++
		}
		if kinds != 1 {
			return nil, fmt.Errorf("%s: want one of httpGet, tcpSocket and grpc, and there are %d", path, kinds)
		}
		var err error
		if p.port, err = parsePort(string(bytes.TrimSpace(port))); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if from.TimeoutSeconds < 0 {
			return nil, fmt.Errorf("%s: timeoutSeconds is %d: want at least 1", path, from.TimeoutSeconds)
		}
		p.timeout = time.Duration(from.TimeoutSeconds) * time.Second
		if p.timeout == 0 && strings.HasPrefix(path, "/app-health/") {
			p.timeout = defaultTimeout // a lifecycle handler has none: the kubelet ends it
		}
		parsed[path] = p
	}
	return parsed, nil
}

func invalidJSON(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("the JSON has a %s at %q (byte %d), where there should be another type", wrong.Value, wrong.Field, wrong.Offset)
	}
	return fmt.Errorf("it is not valid JSON: %w", err)
}

func parseScheme(text string) (string, error) {
	switch scheme := strings.ToLower(text); scheme {
	case "http", "https":
		return scheme, nil
	case "":
		return "http", nil
	}
	return "", fmt.Errorf("scheme %q: want HTTP or HTTPS", text)
}

// probeURL returns a URL without a host. As the kubelet does, it takes a path that cannot be parsed as it is.
func probeURL(scheme, path string) *url.URL {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host = scheme, ""
	return u
}

// parsePort reads a port. The webhook has replaced names by numbers.
func parsePort(text string) (int, error) {
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > math.MaxUint16 {
		return 0, fmt.Errorf("port %s: want a number from 1 to 65535", cmp.Or(text, `""`))
	}
	return port, nil
}

// reserved are the ports that belong to the proxy, of which some would answer with what is merged already.
var reserved = map[int]string{
	15000: "Envoy's admin interface", 15001: "redirected outbound traffic", 15004: "istiod's debug interface", 15006: "redirected inbound traffic",
	15008: "HBONE", 15020: "the agent itself", 15021: "Envoy's health", 15053: "DNS", defaultStatsPort: "Envoy's metrics, which are merged anyway",
}

// parseAnnotations returns the URLs of the application's metrics; "" is none.
func parseAnnotations(text string, statusPort int) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	type target struct {
		Port string `json:"port"`
		Path string `json:"path"`
	}
	var annotations struct {
		Scrape string `json:"scrape"`
		target
		Targets []target `json:"targets"`
	}
	if err := json.Unmarshal([]byte(text), &annotations); err != nil {
		return nil, invalidJSON(err)
	}
	if annotations.Scrape == "false" {
		return nil, nil
	}
	if len(annotations.Targets) == 0 {
		if annotations.Port == "" {
			annotations.Port = "80" // as in Istio
		}
		annotations.Targets = []target{annotations.target}
	}
	var urls []string
	for _, t := range annotations.Targets {
		port, err := parsePort(t.Port)
		if err != nil {
			return nil, err
		}
		if port == statusPort {
			return nil, fmt.Errorf("port %d is the port of the agent, which would scrape itself", port)
		}
		if whose, is := reserved[port]; is {
			return nil, fmt.Errorf("port %d belongs to the proxy (%s)", port, whose)
		}
		if t.Path == "" {
			t.Path = "/metrics"
		}
		u := probeURL("http", t.Path)
		u.Host = fmt.Sprintf("localhost:%d", port)
		urls = append(urls, u.String())
	}
	return urls, nil
}
