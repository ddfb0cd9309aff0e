package service

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Labels and annotations of Istio and Kubernetes.
const (
	labelNetwork  = "topology.istio.io/network"
	labelCluster  = "topology.istio.io/cluster"
	labelSubzone  = "topology.istio.io/subzone"
	labelRegion   = "topology.kubernetes.io/region"
	labelZone     = "topology.kubernetes.io/zone"
	labelLocality = "topology.istio.io/locality"
	labelTLSMode  = "security.istio.io/tlsMode"
	labelWorkload = "service.istio.io/workload-name"
	// labelOldLocality is the former name of labelLocality.
	labelOldLocality     = "istio-locality"
	annotationAutoGroup  = "istio.io/autoRegistrationGroup"
	podTemplateHashLabel = "pod-template-hash"
)

// workload is a Pod or a WorkloadEntry: a program at an address.
type workload struct {
	config *config.Config
	// endpoint is what its endpoints have in common. Its address is the first of the addresses.
	endpoint  Endpoint
	addresses []string
	// ports are those of a WorkloadEntry by the name of the service's port; those of a Pod by their
	// name and protocol.
	ports map[string]uint32
	named map[namedPort]uint32
	// notIP says that the address is a DNS name or a Unix socket.
	notIP bool
}

type namedPort struct {
	name     string
	protocol corev1.Protocol
}

// equal reports whether two workloads give the same endpoints.
func (w *workload) equal(o *workload) bool {
	if w == nil || o == nil {
		return w == o
	}
	return w.endpoint.Equal(&o.endpoint) && slices.Equal(w.addresses, o.addresses) && maps.Equal(w.ports, o.ports) && maps.Equal(w.named, o.named)
}

// at returns the endpoint of a workload for a port of a service.
func (w *workload) at(portName string, port uint32) *Endpoint {
	e := w.endpoint
	e.PortName, e.Port = portName, port
	if e.Address != "" && strings.HasPrefix(e.Address, unixPrefix) {
		e.Port = 0
	}
	return NewEndpoint(e)
}

// isPod reports whether the workload is a Pod.
func (w *workload) isPod() bool { return w.config != nil && w.config.Kind == config.Pod }

// selects reports whether a selector selects labels. One without labels selects nothing.
func selects(selector, labels map[string]string) bool {
	for name, value := range selector {
		if got, ok := labels[name]; !ok || got != value {
			return false
		}
	}
	return len(selector) > 0
}

// workloads are the Pods and WorkloadEntries of all namespaces.
type workloads struct {
	options     *Options
	byNamespace map[string]map[config.Key]*workload
	// networks has the network of each namespace that has the label.
	networks map[string]string
}

func newWorkloads(options *Options) workloads {
	return workloads{options, map[string]map[config.Key]*workload{}, map[string]string{}}
}

// transition is a change of a workload; Old and New are nil if there is none.
type transition struct {
	key      config.Key
	old, new *workload
}

// set takes in a change of a Pod or a WorkloadEntry.
func (w *workloads) set(e config.Event) transition {
	key := e.Key()
	t := transition{key: key, old: w.byNamespace[key.Namespace][key]}
	if e.New != nil {
		t.new = w.convert(e.New)
	}
	if t.new == nil {
		take(w.byNamespace, key.Namespace, key)
	} else {
		put(w.byNamespace, key.Namespace, key, t.new)
	}
	return t
}

// setNamespace takes in a change of a Namespace. It reports whether its network changed, and returns
// the workloads for which that matters.
func (w *workloads) setNamespace(e config.Event) (changed bool, moved []transition) {
	name, network := e.Key().Name, ""
	if e.New != nil {
		network = e.New.Labels[labelNetwork]
	}
	if w.networks[name] == network {
		return false, nil
	}
	if w.networks[name] = network; network == "" {
		delete(w.networks, name)
	}
	for _, key := range slices.SortedFunc(maps.Keys(w.byNamespace[name]), compareDocuments) {
		moved = append(moved, w.set(config.Event{New: w.byNamespace[name][key].config}))
	}
	return true, moved
}

// convert returns the workload of a document, nil if it has no address.
func (w *workloads) convert(c *config.Config) *workload {
	switch spec := c.Spec.(type) {
	case *corev1.Pod:
		return w.pod(c, spec)
	case *networking.WorkloadEntry:
		return w.entry(c, spec)
	default:
		w.options.reportf(c, "%T is no workload", c.Spec)
		return nil
	}
}

// network returns the network of a workload: that of its label, of its namespace, or of the
// registry.
func (w *workloads) network(namespace string, labels map[string]string) string {
	return cmp.Or(labels[labelNetwork], w.networks[namespace], w.options.Network)
}

// pod returns the workload of a Pod, nil if it has no address or has ended. Its namespace's network
// counts if it has none of its own.
func (w *workloads) pod(c *config.Config, pod *corev1.Pod) *workload {
	addresses := podAddresses(pod)
	if len(addresses) == 0 || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	network, locality := w.network(c.Namespace, c.Labels), podLocality(c.Labels)
	out := &workload{config: c, addresses: addresses, named: podPorts(pod), endpoint: Endpoint{
		Address: addresses[0], Locality: locality, Network: network, Cluster: w.options.Cluster,
		Labels:         w.augment(c.Labels, locality, network),
		ServiceAccount: w.options.spiffeID(c.Namespace, cmp.Or(pod.Spec.ServiceAccountName, "default")),
		Namespace:      c.Namespace, Workload: podWorkload(c, pod), Health: podHealth(pod),
		HasSidecar: c.Labels[labelTLSMode] == "istio",
	}}
	return out
}

func podAddresses(pod *corev1.Pod) []string {
	var out []string
	if pod.Status.PodIP != "" {
		out = append(out, pod.Status.PodIP)
	}
	for _, ip := range pod.Status.PodIPs {
		if ip.IP != "" && !slices.Contains(out, ip.IP) {
			out = append(out, ip.IP)
		}
	}
	return out
}

// podPorts returns the ports of the containers that have a name, and of those that run beside them.
func podPorts(pod *corev1.Pod) map[namedPort]uint32 {
	out := map[namedPort]uint32{}
	for _, container := range longRunning(pod) {
		for _, port := range container.Ports {
			key := namedPort{port.Name, cmp.Or(port.Protocol, corev1.ProtocolTCP)}
			if _, ok := out[key]; port.Name != "" && !ok {
				out[key] = uint32(port.ContainerPort)
			}
		}
	}
	return out
}

// longRunning returns the containers of a Pod, and the init containers that are sidecars.
func longRunning(pod *corev1.Pod) []corev1.Container {
	out := slices.Clone(pod.Spec.Containers)
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

// podHealth returns the health of a Pod that no EndpointSlice has. A Pod whose status does not say
// whether it is ready is healthy.
func podHealth(pod *corev1.Pod) Health {
	if pod.DeletionTimestamp != nil {
		return Terminating
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
			return UnHealthy
		}
	}
	return Healthy
}

// podWorkload returns the name of the Deployment or other object that made a Pod, or the Pod's own.
func podWorkload(c *config.Config, pod *corev1.Pod) string {
	if name := c.Labels[labelWorkload]; name != "" {
		return name
	}
	for _, owner := range pod.OwnerReferences {
		if owner.Controller == nil || !*owner.Controller || pod.GenerateName == "" {
			continue
		}
		switch hash := c.Labels[podTemplateHashLabel]; {
		case owner.Kind == "ReplicaSet" && hash != "":
			return strings.TrimSuffix(owner.Name, "-"+hash)
		case owner.Kind == "Job":
			return cronJob(owner.Name)
		}
		return owner.Name
	}
	return c.Name
}

// cronJob returns the name of the CronJob that made a Job, or the Job's own: a CronJob appends a time
// of 8 to 10 digits.
func cronJob(job string) string {
	dash := strings.LastIndexByte(job, '-')
	digits := job[dash+1:]
	if dash < 1 || len(digits) < 8 || len(digits) > 10 || strings.Trim(digits, "0123456789") != "" {
		return job
	}
	return job[:dash]
}

// podLocality returns the locality of a Pod from its labels. The labels of its node are not known.
func podLocality(labels map[string]string) string {
	if locality := labelledLocality(labels); locality != "" {
		return locality
	}
	region, zone, subzone := labels[labelRegion], labels[labelZone], labels[labelSubzone]
	if region == "" && zone == "" && subzone == "" {
		return ""
	}
	return region + "/" + zone + "/" + subzone
}

// labelledLocality returns the locality that a label has. In it a "." stands for a slash, which
// labels cannot have.
func labelledLocality(labels map[string]string) string {
	locality := first(labels, labelLocality, labelOldLocality)
	if strings.Contains(locality, "/") {
		return locality
	}
	return strings.ReplaceAll(locality, ".", "/")
}

// entry returns the workload of a WorkloadEntry document. The labels of the document take the place
// of those of its spec.
func (w *workloads) entry(c *config.Config, spec *networking.WorkloadEntry) *workload {
	if spec.GetAddress() == "" {
		return nil
	}
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels)
	name := cmp.Or(c.Annotations[annotationAutoGroup], c.Labels[labelWorkload], c.Name)
	out := w.inline(spec, labels, c.Namespace, name)
	out.config = c
	return out
}

// inline returns the workload of an endpoint that a ServiceEntry or a WorkloadEntry describes.
func (w *workloads) inline(spec *networking.WorkloadEntry, labels map[string]string, namespace, name string) *workload {
	locality := cmp.Or(spec.Locality, labelledLocality(labels))
	network := cmp.Or(spec.Network, w.network(namespace, labels))
	e := Endpoint{
		Address: spec.Address, Locality: locality, Network: network, Cluster: w.options.Cluster, Weight: spec.Weight,
		Labels: w.augment(labels, locality, network), Namespace: namespace, Workload: name,
		HasSidecar: spec.ServiceAccount != "",
	}
	if mode, ok := labels[labelTLSMode]; ok {
		e.HasSidecar = mode == "istio"
	}
	if spec.ServiceAccount != "" {
		e.ServiceAccount = w.options.spiffeID(namespace, spec.ServiceAccount)
	}
	_, err := netip.ParseAddr(spec.Address)
	return &workload{endpoint: e, addresses: []string{spec.Address}, ports: spec.Ports, notIP: err != nil}
}

// ofProxy returns the workload of a proxy, which has an address, from what the proxy says of itself.
func (w *workloads) ofProxy(p Proxy) *workload {
	network, locality := w.network(p.Namespace, p.Labels), podLocality(p.Labels)
	return &workload{
		config: &config.Config{Meta: config.Meta{Key: config.Key{Kind: config.Pod, Namespace: p.Namespace}, Labels: p.Labels}},
		endpoint: Endpoint{
			Address: p.Addresses[0], Locality: locality, Network: network, Cluster: w.options.Cluster,
			Labels: w.augment(p.Labels, locality, network), Namespace: p.Namespace,
		},
		addresses: p.Addresses,
	}
}

// augment adds the labels for locality, network and cluster by which subsets may select.
func (w *workloads) augment(labels map[string]string, locality, network string) map[string]string {
	out := make(map[string]string, len(labels)+5)
	maps.Copy(out, labels)
	region, rest, _ := strings.Cut(locality, "/")
	zone, rest, _ := strings.Cut(rest, "/")
	subzone, _, _ := strings.Cut(rest, "/")
	for name, value := range map[string]string{labelRegion: region, labelZone: zone, labelSubzone: subzone, labelCluster: w.options.Cluster} {
		if value != "" {
			out[name] = value
		}
	}
	if network != "" && out[labelNetwork] == "" {
		out[labelNetwork] = network
	}
	return out
}
