package bootstrap

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// DefaultIDTemplate yields node ids in the form of Istio's proxies. The placeholders of a template are {ip}, {pod},
// {namespace}, {domain} and {cluster}; a doubled brace stands for itself.
const DefaultIDTemplate = "sidecar~{ip}~{pod}.{namespace}~{domain}"

// Identity is everything known about the identity of Envoy. Node builds the node from it.
type Identity struct {
	// Given contains the explicitly configured values, which take precedence; its fields may be empty.
	Given Node
	// IDTemplate yields the id if none is configured; DefaultIDTemplate.
	IDTemplate string
	// Pod is the pod that Envoy runs in. If the id is built from it, it is also in the metadata, under Istio's names: NAME,
	// NAMESPACE, INSTANCE_IPS, SERVICE_ACCOUNT.
	Pod Pod
	// Environ is the environment (NAME=VALUE). These variables become metadata, the first ones taking precedence:
	//
	//	HOLDFAST_META_KEY=text
	//	ISTIO_METAJSON_ANYTHING={"KEY": value, …}; ISTIO_METAJSON_LABELS is the value of LABELS
	//	ISTIO_META_KEY=text
	Environ []string
	// Labels and Annotations are those of the pod. They become the metadata LABELS and ANNOTATIONS, whose entries other
	// sources of metadata may override one by one.
	Labels, Annotations map[string]string
}

// Pod is what Kubernetes tells a pod about itself.
type Pod struct {
	// IPs are its addresses. The id contains the first one of the Family; with Dual, the default, the first one.
	IPs                             []netip.Addr
	Family                          Family
	Name, Namespace, ServiceAccount string
	// Domain is the domain in the id; NAMESPACE.svc.cluster.local.
	Domain string
}

// Labels that determine fields of a node, in order of precedence.
var (
	// clusterLabels contain the name of the service, as labelled by Istio and Kubernetes.
	clusterLabels = []string{"app", "service.istio.io/canonical-name", "app.kubernetes.io/name"}

	// localityLabel contains region/zone/subzone; a label value cannot contain slashes, so it may have dots instead.
	localityLabel  = "istio-locality"
	localityLabels = []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"}
)

// leftOut are labels and annotations that are left out of the metadata: the first one changes with every revision of a
// deployment, the next one repeats the whole specification of the pod, and the others are what `holdfast inject` writes.
var leftOut = []string{"pod-template-hash", "kubectl.kubernetes.io/last-applied-configuration", "holdfast.dev/settings", "holdfast.dev/status"}

// With returns the identity with the id and the cluster of node, if it has them, as the configured ones.
func (i Identity) With(node *corev3.Node) Identity {
	i.Given.ID = cmp.Or(node.GetId(), i.Given.ID)
	i.Given.Cluster = cmp.Or(node.GetCluster(), i.Given.Cluster)
	return i
}

// Node returns the node. If something is missing, the error names every way to provide it.
func (i Identity) Node() (node Node, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("bootstrap: %w", err)
		}
	}()
	node = i.Given
	metadata, err := i.AllMetadata()
	if err != nil {
		return node, err
	}
	labels, _ := metadata["LABELS"].(map[string]any)
	node.Cluster = cmp.Or(node.Cluster, i.clusterOf(labels))
	if node.ID == "" {
		// An id that cannot be built is reported before a cluster that is missing.
		if node.ID, err = i.makeID(cmp.Or(node.Cluster, "unknown")); err != nil {
			return node, err
		}
	}
	if node.Cluster == "" {
		return node, fmt.Errorf("--node-cluster is required, because Envoy does not start xDS without it; alternatively set --pod-labels with one of %s", strings.Join(clusterLabels, ", "))
	}
	if node.Locality == "" {
		node.Locality, err = localityOf(labels)
	}
	if len(metadata) > 0 {
		node.Metadata = metadata
	}
	return node, err
}

func (i Identity) clusterOf(labels map[string]any) string {
	for _, label := range clusterLabels {
		if name, _ := labels[label].(string); name != "" {
			return strings.TrimSuffix(name+"."+i.Pod.Namespace, ".")
		}
	}
	return ""
}

// localityOf returns the locality of the labels, "" if they contain none.
func localityOf(labels map[string]any) (string, error) {
	text := func(label string) string {
		s, _ := labels[label].(string)
		return s
	}
	if all := text(localityLabel); all != "" {
		if !strings.Contains(all, "/") {
			all = strings.ReplaceAll(all, ".", "/")
		}
		if _, err := parseLocality(all); err != nil {
			return "", fmt.Errorf("label %s: %w", localityLabel, err)
		}
		return all, nil
	}
	parts := make([]string, len(localityLabels))
	for n, label := range localityLabels {
		parts[n] = text(label)
		if strings.Contains(parts[n], "/") {
			return "", fmt.Errorf("label %s: %q has a slash, which separates region, zone and subzone", label, parts[n])
		}
	}
	return strings.TrimRight(strings.Join(parts, "/"), "/"), nil
}

// makeID fills in the template.
func (i Identity) makeID(cluster string) (string, error) {
	values := map[string]struct{ value, flag string }{
		"pod":       {i.Pod.Name, "--pod-name (or POD_NAME)"},
		"namespace": {i.Pod.Namespace, "--pod-namespace (or POD_NAMESPACE)"},
		"domain":    {i.Pod.domain(), "--pod-namespace (or POD_NAMESPACE)"},
		"cluster":   {cluster, "--node-cluster"},
		"ip":        {i.Pod.ip(), "--pod-ip (or POD_IP, INSTANCE_IP)"},
	}
	if len(i.Pod.IPs) > 0 && i.Pod.ip() == "" {
		values["ip"] = struct{ value, flag string }{"", fmt.Sprintf("an address of the family %s in --pod-ip", i.Pod.Family)}
	}
	template := cmp.Or(i.IDTemplate, DefaultIDTemplate)
	var wrong error
	var missing []string
	id := regexp.MustCompile(`\{\{|\}\}|\{[^}]*\}?`).ReplaceAllStringFunc(template, func(part string) string {
		if part == "{{" || part == "}}" {
			return part[:1]
		}
		name, closed := strings.CutSuffix(part[1:], "}")
		v, known := values[name]
		switch {
		case wrong != nil:
		case !closed:
			wrong = fmt.Errorf("--node-id-template %q: a brace is not closed", template)
		case !known:
			wrong = fmt.Errorf("--node-id-template %q: {%s} is none of {%s}", template, name, strings.Join(slices.Sorted(maps.Keys(values)), "}, {"))
		case v.value == "" && !slices.Contains(missing, v.flag):
			missing = append(missing, v.flag)
		}
		return v.value
	})
	if wrong == nil && len(missing) > 0 {
		wrong = fmt.Errorf("--node-id is required, or the values for the template %s: missing %s", template, strings.Join(missing, ", "))
	}
	return id, wrong
}

func (p Pod) ip() string {
	for _, ip := range p.IPs {
		if p.Family == "" || p.Family.Has(ip) {
			return ip.Unmap().String()
		}
	}
	return ""
}

func (p Pod) domain() string {
	if p.Domain == "" && p.Namespace != "" {
		return p.Namespace + ".svc.cluster.local"
	}
	return p.Domain
}

// AllMetadata returns the values of all sources, a later one overriding earlier ones: pod, files, ISTIO_META_,
// ISTIO_METAJSON_, HOLDFAST_META_, flags. The map is new for each call; values in it may be those of Given.
func (i Identity) AllMetadata() (map[string]any, error) {
	m := make(map[string]any)
	if i.Given.ID == "" {
		merge(m, i.Pod.metadata())
	}
	for key, of := range map[string]map[string]string{"LABELS": i.Labels, "ANNOTATIONS": i.Annotations} {
		values := make(map[string]any, len(of))
		for name, value := range of {
			if !slices.Contains(leftOut, name) {
				values[name] = value
			}
		}
		if len(values) > 0 {
			m[key] = values
		}
	}
	environ := slices.Sorted(slices.Values(i.Environ)) // sorted, so that the result does not depend on the order of duplicates
	merge(m, variables(environ, "ISTIO_META_"))
	objects := variables(environ, "ISTIO_METAJSON_")
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		object, err := jsonObject(objects[name].(string))
		if err != nil {
			return nil, fmt.Errorf("environment variable ISTIO_METAJSON_%s: %w", name, err)
		}
		if name == "LABELS" {
			object = map[string]any{"LABELS": object}
		}
		merge(m, object)
	}
	merge(m, variables(environ, "HOLDFAST_META_"))
	merge(m, i.Given.Metadata)
	return m, nil
}

func (p Pod) metadata() map[string]any {
	m := make(map[string]any)
	var ips []string
	for _, ip := range p.IPs {
		ips = append(ips, ip.Unmap().String())
	}
	for key, value := range map[string]string{
		"NAME": p.Name, "NAMESPACE": p.Namespace, "SERVICE_ACCOUNT": p.ServiceAccount, "INSTANCE_IPS": strings.Join(ips, ","),
	} {
		if value != "" {
			m[key] = value
		}
	}
	return m
}

// merge sets the values of from in m. LABELS and ANNOTATIONS are merged entry by entry.
func merge(m, from map[string]any) {
	for key, value := range from {
		if key == "LABELS" || key == "ANNOTATIONS" {
			old, _ := m[key].(map[string]any)
			more, ok := value.(map[string]any)
			if ok && old != nil {
				all := maps.Clone(old)
				maps.Copy(all, more)
				value = all
			}
		}
		m[key] = value
	}
}

// variables returns the variables whose name has the prefix, by the rest of the name.
func variables(environ []string, prefix string) map[string]any {
	found := make(map[string]any)
	for _, variable := range environ {
		name, value, ok := strings.Cut(variable, "=")
		if key, matches := strings.CutPrefix(name, prefix); ok && matches && key != "" {
			found[key] = value
		}
	}
	return found
}

// jsonObject parses one object, without rounding integers.
func jsonObject(text string) (map[string]any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, errors.New("want a JSON object") // the parser's error may quote a secret
	}
	if decoder.More() {
		return nil, errors.New("want one JSON object")
	}
	_, err := ExactNumbers(object)
	return object, err
}

// ExactNumbers replaces each json.Number of a decoded value, in place: integers by int64, so that Node.Proto notices one
// that protobuf would round, and others by float64.
func ExactNumbers(v any) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		f, err := v.Float64()
		if err != nil || !strings.ContainsAny(v.String(), ".eE") {
			return nil, fmt.Errorf("%s is too large for a number: write it as a string", v)
		}
		return f, nil
	case []any:
		for n := range v {
			if v[n], err = ExactNumbers(v[n]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = ExactNumbers(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// ReadDownward reads the labels or annotations from a file of Kubernetes' downward API. Errors name file and line.
func ReadDownward(path string) (map[string]string, error) {
	data, err := userfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	values, err := parseDownward(string(data))
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %s: %w", path, err)
	}
	return values, nil
}

// parseDownward parses lines of the form key="value" with Go's quoting.
func parseDownward(text string) (map[string]string, error) {
	values := make(map[string]string)
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, quoted, found := strings.Cut(line, "=")
		value, err := strconv.Unquote(strings.TrimSpace(quoted))
		if !found || key == "" || err != nil {
			return nil, fmt.Errorf(`line %d: want key="value", as the downward API writes it`, i+1)
		}
		if _, twice := values[key]; twice {
			return nil, fmt.Errorf("line %d: %q is there twice", i+1, key)
		}
		values[key] = value
	}
	return values, nil
}
