package istio

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// kind is how istiod decodes a key of the metadata. It ends the stream of a proxy whose metadata it cannot decode.
type kind int

const (
	text    kind = iota // text
	number              // a number
	boolean             // "true" or "false", as text
	list                // text, separated by commas
	ports               // a list of a container's ports, as JSON in text
	entries             // an object of texts
	array               // a list of texts
	object              // any object
)

// kinds are the keys that istiod decodes. Any other key is passed on as it is.
var kinds = map[string]kind{
	"NAME": text, "NAMESPACE": text, "OWNER": text, "WORKLOAD_NAME": text, "SERVICE_ACCOUNT": text, "NODE_NAME": text, "MESH_ID": text,
	"CLUSTER_ID": text, "NETWORK": text, "ISTIO_VERSION": text, "ISTIO_REVISION": text, "ISTIO_PROXY_SHA": text, "INTERCEPTION_MODE": text,
	"HTTP_PROXY_PORT": text, "TLS_SERVER_CERT_CHAIN": text, "TLS_SERVER_KEY": text, "TLS_SERVER_ROOT_CERT": text, "TLS_CLIENT_CERT_CHAIN": text,
	"TLS_CLIENT_KEY": text, "TLS_CLIENT_ROOT_CERT": text, "BASE": text, "IDLE_TIMEOUT": text, "HTTP10": text, "GENERATOR": text,
	"DNS_PROXY_ADDR": text, "AUTO_REGISTER_GROUP": text, "WORKLOAD_ENTRY": text, "UNPRIVILEGED_POD": text, "STS_PORT": text,
	"CLOUDRUN_ADDR": text, "WORKLOAD_IDENTITY_SOCKET_FILE": text, "OUTLIER_LOG_PATH": text, "APP_CONTAINERS": text,
	"ENVOY_STATUS_PORT": number, "ENVOY_PROMETHEUS_PORT": number, "ENVOY_SECURE_METRICS_PORT": number, "ENVOY_SECURE_MERGED_METRICS_PORT": number,
	"ENABLE_SELF_DISCOVERY": boolean, "DNS_CAPTURE": boolean, "DNS_AUTO_ALLOCATE": boolean, "ENABLE_HBONE": boolean, "DISABLE_HBONE_SEND": boolean,
	"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": boolean, "INBOUND_LISTENER_EXACT_BALANCE": boolean, "OUTBOUND_LISTENER_EXACT_BALANCE": boolean,
	"METADATA_DISCOVERY": boolean, "ENVOY_SKIP_DEPRECATED_LOGS": boolean,
	"INSTANCE_IPS": list, "REQUESTED_NETWORK_VIEW": list, "POD_PORTS": ports, "PILOT_SAN": array, "PROXY_CONFIG": object,
	"LABELS": entries, "STATIC_LABELS": entries, "ANNOTATIONS": entries, "PLATFORM_METADATA": entries,
}

// convert returns a value as istiod decodes it.
func (k kind) convert(value any) (any, error) {
	switch k {
	case text:
		return scalarText(value)
	case number:
		if written, ok := value.(string); ok {
			n, err := strconv.ParseInt(written, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%q is not a whole number", written)
			}
			return n, nil
		}
		if n, ok := value.(int64); ok {
			return n, nil
		}
		return nil, errors.New("want a whole number")
	case boolean:
		written, err := scalarText(value)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseBool(written)
		if err != nil {
			return nil, fmt.Errorf("%q is neither true nor false", written)
		}
		return strconv.FormatBool(b), nil
	default:
		return k.convertMany(value)
	}
}

// convertMany is convert for the kinds of several values.
func (k kind) convertMany(value any) (any, error) {
	switch k {
	case list, array:
		elements, err := textList(value)
		if err != nil || k == list {
			return strings.Join(elements, ","), err
		}
		all := make([]any, len(elements))
		for i, element := range elements {
			all[i] = element
		}
		return all, nil
	case ports:
		return portList(value)
	}
	written, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("want an object")
	}
	if k == object {
		return value, nil
	}
	all := make(map[string]any, len(written))
	for key, entry := range written {
		entry, err := scalarText(entry)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		all[key] = entry
	}
	return all, nil
}

// scalarText returns the text of a text, a number or a boolean.
func scalarText(value any) (string, error) {
	switch value := value.(type) {
	case string:
		return value, nil
	case bool, int, int64, float64:
		return fmt.Sprint(value), nil
	}
	return "", errors.New("want text")
}

// textList returns the elements of a list, or of a text with commas.
func textList(value any) ([]string, error) {
	written, ok := value.([]any)
	if !ok {
		all, err := scalarText(value)
		if err != nil || all == "" {
			return nil, err
		}
		return strings.Split(all, ","), nil
	}
	var all []string
	for _, element := range written {
		element, err := scalarText(element)
		if err != nil {
			return nil, err
		}
		all = append(all, element)
	}
	return all, nil
}

// portList returns the JSON of a list of ports, in a form without spaces.
func portList(value any) (string, error) {
	written, ok := value.(string)
	if !ok {
		made, err := json.Marshal(value)
		if err != nil {
			return "", err
		}
		written = string(made)
	}
	var all []struct {
		Name          string `json:"name,omitempty"`
		ContainerPort int    `json:"containerPort,omitempty"`
		Protocol      string `json:"protocol"`
	}
	if err := json.Unmarshal([]byte(written), &all); err != nil {
		return "", errors.New(`want a list of ports in JSON, such as [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]`)
	}
	if all == nil {
		return "[]", nil
	}
	made, err := json.Marshal(all)
	return string(made), err
}

// Identity returns the identity with the id, the cluster, the locality and the metadata that istiod expects. Its metadata
// is complete: later sources add nothing. What the flags of the node set stays, in the form that istiod decodes. cfg is what
// Configure returned.
func (p *Proxy) Identity(cfg bootstrap.Config) (bootstrap.Identity, error) {
	id := p.identity
	metadata, err := id.AllMetadata()
	if err != nil {
		return id, fmt.Errorf("istio: %w", err)
	}
	if err := p.addMetadata(metadata, cfg); err != nil {
		return id, fmt.Errorf("istio: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(metadata)) { // sorted, so that the error is always the same
		if k, known := kinds[key]; known {
			if metadata[key], err = k.convert(metadata[key]); err != nil {
				return id, fmt.Errorf("istio: metadata %s: %w", key, err)
			}
		}
	}
	labels := texts(metadata["LABELS"])
	if locality := cmp.Or(labels["topology.istio.io/locality"], labels["istio-locality"]); locality != "" {
		if !strings.Contains(locality, "/") {
			locality = strings.ReplaceAll(locality, ".", "/")
		}
		id.Given.Locality = cmp.Or(id.Given.Locality, locality)
		metadata["LABELS"].(map[string]any)["istio-locality"] = locality // an object since convert
	}
	workload, _ := metadata["WORKLOAD_NAME"].(string)
	id.Given.Cluster = cmp.Or(id.Given.Cluster, p.cluster(labels, workload))
	if id.IDTemplate == "" || id.IDTemplate == bootstrap.DefaultIDTemplate {
		id.IDTemplate = string(p.role) + strings.TrimPrefix(bootstrap.DefaultIDTemplate, string(Sidecar))
	}
	id.Given.Metadata = metadata
	return id, nil
}

// addMetadata adds to the metadata what pilot-agent adds, unless it is there.
func (p *Proxy) addMetadata(metadata map[string]any, cfg bootstrap.Config) error {
	config, err := protojson.Marshal(p.config)
	if err != nil {
		return err
	}
	tree, err := decode(config)
	if err != nil {
		return err
	}
	host, _, _ := strings.Cut(p.config.GetDiscoveryAddress(), ":")
	if host == "localhost" {
		host = "istiod.istio-system.svc" // for a port that is forwarded
	}
	pod := p.identity.Pod
	var ips []string
	for _, ip := range pod.IPs {
		ips = append(ips, ip.Unmap().String())
	}
	more := map[string]any{
		"PROXY_CONFIG": tree, "PILOT_SAN": []any{host}, "ISTIO_VERSION": DefaultVersion,
		"INTERCEPTION_MODE": cmp.Or(p.annotations["sidecar.istio.io/interceptionMode"], p.config.GetInterceptionMode().String()),
		"NAME":              pod.Name, "NAMESPACE": pod.Namespace, "SERVICE_ACCOUNT": pod.ServiceAccount, "INSTANCE_IPS": strings.Join(ips, ","),
		"DNS_PROXY_ADDR":                  variable(p.identity.Environ, "DNS_PROXY_ADDR"),
		"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": variable(p.identity.Environ, "EXIT_ON_ZERO_ACTIVE_CONNECTIONS"),
	}
	if labels := variable(p.identity.Environ, "ISTIO_METAJSON_LABELS"); labels != "" {
		if more["STATIC_LABELS"], err = decode([]byte(labels)); err != nil {
			return fmt.Errorf("variable ISTIO_METAJSON_LABELS: %w", err)
		}
	}
	for key, address := range map[string]string{"ENVOY_STATUS_PORT": cfg.Endpoints.Ready, "ENVOY_PROMETHEUS_PORT": cfg.Endpoints.Stats} {
		if _, port, err := net.SplitHostPort(address); err == nil { // Build reports a bad address
			more[key] = port
		}
	}
	for key, value := range more {
		if _, there := metadata[key]; !there && value != "" {
			metadata[key] = value
		}
	}
	return nil
}

// decode decodes a JSON object with exact numbers.
func decode(text []byte) (map[string]any, error) {
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	var tree map[string]any
	if err := decoder.Decode(&tree); err != nil || tree == nil {
		return nil, errors.New("want a JSON object")
	}
	_, err := bootstrap.ExactNumbers(tree)
	return tree, err
}
