package bootstrap

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// DefaultIDTemplate makes node ids as Istio's proxies have them. The placeholders of a template are {ip}, {pod},
// {namespace}, {domain} and {cluster}; a brace stands for itself when it is doubled.
const DefaultIDTemplate = "sidecar~{ip}~{pod}.{namespace}~{domain}"

// Identity is all that is known of who Envoy is, from which Node makes its node.
type Identity struct {
	// Given is what was said expressly. It wins over everything else; its fields may be empty.
	Given Node

	// IDTemplate makes the id if none is given: DefaultIDTemplate.
	IDTemplate string

	// Pod is the pod that Envoy runs in. If it makes the id, it is in the metadata too, under the names that Istio has for
	// it: NAME, NAMESPACE, INSTANCE_IPS, SERVICE_ACCOUNT.
	Pod Pod

	// Environ is the environment, NAME=VALUE each, of which these become metadata, the first ones winning:
	//
	//	HOLDFAST_META_KEY=text
	//	ISTIO_METAJSON_ANYTHING={"KEY": value, …}; ISTIO_METAJSON_LABELS is the value of LABELS
	//	ISTIO_META_KEY=text
	Environ []string

	// Labels and Annotations of the pod. They are the metadata LABELS and ANNOTATIONS, in which single ones are replaced
	// by what else names them.
	Labels, Annotations map[string]string
}

// Pod is what Kubernetes tells a pod of itself.
type Pod struct {
	// IPs are its addresses. The first of the Family is that of the id; Dual, the default, takes the first of all.
	IPs    []netip.Addr
	Family Family

	Name, Namespace, ServiceAccount string

	// Domain of the id: NAMESPACE.svc.cluster.local.
	Domain string
}

// Labels that say something about a node, by precedence.
var (
	// clusterLabels name the service, those of Istio and Kubernetes.
	clusterLabels = []string{"app", "service.istio.io/canonical-name", "app.kubernetes.io/name"}

	// localityLabel is region/zone/subzone in one; as a label's value has no slashes, dots are written.
	localityLabel  = "istio-locality"
	localityLabels = []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"}
)

// The labels and annotations that say nothing about a pod but are its making: one changes with every version of a
// deployment, the other repeats all of the pod's specification.
const (
	templateHash = "pod-template-hash"
	lastApplied  = "kubectl.kubernetes.io/last-applied-configuration"
)

// With returns the identity with what a node says in place of what was given, where the node says something.
func (i Identity) With(node *corev3.Node) Identity {
	i.Given.ID = cmp.Or(node.GetId(), i.Given.ID)
	i.Given.Cluster = cmp.Or(node.GetCluster(), i.Given.Cluster)
	return i
}

// Node returns the node. What is missing is an error that names every way to give it.
func (i Identity) Node() (Node, error) {
	node := i.Given
	metadata, err := i.metadata()
	if err != nil {
		return Node{}, fmt.Errorf("bootstrap: %w", err)
	}
	labels, _ := metadata["LABELS"].(map[string]any)
	if node.Cluster == "" {
		node.Cluster = i.clusterOf(labels)
	}
	if node.Cluster == "" {
		return Node{}, i.noCluster()
	}
	if node.ID == "" {
		if node.ID, err = i.makeID(node.Cluster); err != nil {
			return Node{}, fmt.Errorf("bootstrap: %w", err)
		}
	}
	if node.Locality == "" {
		if node.Locality, err = localityOf(labels); err != nil {
			return Node{}, fmt.Errorf("bootstrap: %w", err)
		}
	}
	if len(metadata) > 0 {
		node.Metadata = metadata
	}
	return node, nil
}

// noCluster names the id first where both are missing.
func (i Identity) noCluster() error {
	if i.Given.ID == "" {
		if _, err := i.makeID("unknown"); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	return fmt.Errorf("bootstrap: --node-cluster is required: Envoy does not start xDS without it; or give --pod-labels with one of %s", strings.Join(clusterLabels, ", "))
}

func (i Identity) clusterOf(labels map[string]any) string {
	for _, label := range clusterLabels {
		if name, _ := labels[label].(string); name != "" {
			if i.Pod.Namespace != "" {
				name += "." + i.Pod.Namespace
			}
			return name
		}
	}
	return ""
}

// localityOf returns "" if the labels say nothing of it.
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
	var id strings.Builder
	var missing []string
	for rest := template; rest != ""; {
		text, after, found := cutBrace(rest)
		id.WriteString(text)
		if rest = after; !found {
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		v, known := values[name]
		switch {
		case !closed:
			return "", fmt.Errorf("--node-id-template %q: a brace is not closed", template)
		case !known:
			return "", fmt.Errorf("--node-id-template %q: {%s} is none of {%s}", template, name, strings.Join(slices.Sorted(maps.Keys(values)), "}, {"))
		case v.value == "" && !slices.Contains(missing, v.flag):
			missing = append(missing, v.flag)
		}
		id.WriteString(v.value)
		rest = after
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("--node-id is required, or what makes one of the template %s: missing is %s", template, strings.Join(missing, ", "))
	}
	return id.String(), nil
}

// cutBrace returns the text up to an opening brace, whether there is one, and what comes after it. Doubled braces are
// text.
func cutBrace(s string) (text, after string, found bool) {
	var b strings.Builder
	for s != "" {
		at := strings.IndexAny(s, "{}")
		if at < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:at])
		brace := s[at]
		s = s[at+1:]
		if s != "" && s[0] == brace {
			s = s[1:]
		} else if brace == '{' {
			return b.String(), s, true
		}
		b.WriteByte(brace)
	}
	return b.String(), "", false
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

// metadata returns what is said by the sources, the last winning: pod, files, ISTIO_META_, ISTIO_METAJSON_,
// HOLDFAST_META_, flags.
func (i Identity) metadata() (map[string]any, error) {
	m := make(map[string]any)
	if i.Given.ID == "" {
		merge(m, i.Pod.metadata())
	}
	for key, of := range map[string]map[string]string{"LABELS": i.Labels, "ANNOTATIONS": i.Annotations} {
		values := make(map[string]any, len(of))
		for name, value := range of {
			if name != templateHash && name != lastApplied {
				values[name] = value
			}
		}
		if len(values) > 0 {
			m[key] = values
		}
	}
	environ := slices.Sorted(slices.Values(i.Environ)) // of several that say the same, always the same one wins
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

// merge puts the values of from into m: whole ones, but single labels and annotations.
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

// variables returns those whose name begins with the prefix, by the rest of it.
func variables(environ []string, prefix string) map[string]any {
	found := make(map[string]any)
	for _, variable := range environ {
		name, value, ok := strings.Cut(variable, "=")
		if key, ours := strings.CutPrefix(name, prefix); ok && ours && key != "" {
			found[key] = value
		}
	}
	return found
}

// jsonObject reads one object whose whole numbers stay exact.
func jsonObject(text string) (map[string]any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, errors.New("want a JSON object") // the error may quote what is secret
	}
	if decoder.More() {
		return nil, errors.New("want one JSON object")
	}
	value, err := plainNumbers(object)
	if err != nil {
		return nil, err
	}
	return value.(map[string]any), nil
}

// plainNumbers replaces the numbers of a decoded value: whole ones by int64, so that one which protobuf would round is
// noticed, others by float64.
func plainNumbers(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		f, err := v.Float64()
		if err != nil || !strings.ContainsAny(v.String(), ".eE") {
			return nil, fmt.Errorf("%s is too large for a number: give it as text", v)
		}
		return f, nil
	case []any:
		for n := range v {
			if v[n], err = plainNumbers(v[n]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = plainNumbers(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
