package service

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	meta "istio.io/api/meta/v1alpha1"
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
	labelHostname = "kubernetes.io/hostname"
	labelTLSMode  = "security.istio.io/tlsMode"
	labelWorkload = "service.istio.io/workload-name"
	// labelOldLocality is the former name of labelLocality.
	labelOldLocality     = "istio-locality"
	podTemplateHashLabel = "pod-template-hash"
	// The former names of labelRegion and labelZone.
	labelOldRegion = "failure-domain.beta.kubernetes.io/region"
	labelOldZone   = "failure-domain.beta.kubernetes.io/zone"
)

// What a WorkloadEntry says that was made for a workload that has registered, as in Istio.
const (
	// AnnotationAutoGroup names the WorkloadGroup of a WorkloadEntry that nobody wrote.
	AnnotationAutoGroup = "istio.io/autoRegistrationGroup"
	// AnnotationHealthChecks says that the condition of the type ConditionHealthy in the status decides whether the
	// workload is an endpoint.
	AnnotationHealthChecks = "proxy.istio.io/health-checks-enabled"
	ConditionHealthy       = "Healthy"
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
	// unready are the workloads that have registered and are not endpoints, because they are not healthy.
	unready map[string]map[config.Key]*workload
	// networks has the network of each namespace that has the label.
	networks map[string]string
	// nodes has the locality of each Node that has one, and regions the region of each zone of a Node.
	nodes, regions map[string]string
}

func newWorkloads(options *Options) workloads {
	return workloads{options, map[string]map[config.Key]*workload{}, map[string]map[config.Key]*workload{}, map[string]string{}, map[string]string{}, map[string]string{}}
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
	take(w.unready, key.Namespace, key)
	if e.New != nil {
		t.new = w.convert(e.New)
		if t.new != nil && key.Kind == config.WorkloadEntry && !healthy(e.New) {
			if e.New.Annotations[AnnotationAutoGroup] != "" {
				put(w.unready, key.Namespace, key, t.new)
			}
			t.new = nil
		}
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
	return true, w.again(func(of *workload) bool { return of.config.Namespace == name })
}

// again converts workloads again after something changed on which they depend.
func (w *workloads) again(depends func(*workload) bool) (moved []transition) {
	for _, namespace := range slices.Sorted(maps.Keys(w.byNamespace)) {
		for _, key := range slices.SortedFunc(maps.Keys(w.byNamespace[namespace]), compareDocuments) {
			if of := w.byNamespace[namespace][key]; depends(of) {
				moved = append(moved, w.set(config.Event{New: of.config}))
			}
		}
	}
	return moved
}

// setNode takes in a change of a Node, and returns the Pods whose locality it changes.
func (w *workloads) setNode(e config.Event) (moved []transition) {
	name, locality := e.Key().Name, ""
	if e.New != nil {
		locality = nodeLocality(e.New.Labels)
	}
	if w.nodes[name] == locality {
		return nil
	}
	if w.nodes[name] = locality; locality == "" {
		delete(w.nodes, name)
	}
	clear(w.regions)
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		region, rest, _ := strings.Cut(w.nodes[name], "/")
		zone, _, _ := strings.Cut(rest, "/")
		w.regions[zone] = cmp.Or(w.regions[zone], region)
	}
	return w.again(func(of *workload) bool { return of.endpoint.Node == name })
}

// nodeLocality returns the locality that the labels of a Node say; "" for none.
func nodeLocality(labels map[string]string) string {
	region, zone := first(labels, labelRegion, labelOldRegion), first(labels, labelZone, labelOldZone)
	if region == "" && zone == "" && labels[labelSubzone] == "" {
		return ""
	}
	return region + "/" + zone + "/" + labels[labelSubzone]
}

// localityOn returns the locality of what runs on a node, or else in a zone; "" if neither is known.
func (w *workloads) localityOn(node, zone string) string {
	if locality := w.nodes[node]; locality != "" || zone == "" {
		return locality
	}
	return w.regions[zone] + "/" + zone + "/"
}

// convert returns the workload of a document, nil if it cannot be reached: it has no address and, of a
// WorkloadEntry, no network whose gateways lead to it.
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
	network, node := w.network(c.Namespace, c.Labels), pod.Spec.NodeName
	locality := cmp.Or(LabelledLocality(c.Labels), w.nodes[node], nodeLocality(c.Labels))
	out := &workload{config: c, addresses: addresses, named: podPorts(pod), endpoint: Endpoint{
		Address: addresses[0], Locality: locality, Network: network, Cluster: w.options.Cluster, Node: node,
		Labels:         w.augment(c.Labels, locality, network, node),
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

// LabelledLocality returns the locality that the label istio-locality has; "" for none. In it a "." stands for a slash, which
// labels cannot have.
func LabelledLocality(labels map[string]string) string {
	locality := first(labels, labelLocality, labelOldLocality)
	if strings.Contains(locality, "/") {
		return locality
	}
	return strings.ReplaceAll(locality, ".", "/")
}

// entry returns the workload of a WorkloadEntry document. The labels of the document take the place
// of those of its spec.
func (w *workloads) entry(c *config.Config, spec *networking.WorkloadEntry) *workload {
	if spec.GetAddress() == "" && spec.GetNetwork() == "" {
		return nil
	}
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels)
	name := cmp.Or(c.Annotations[AnnotationAutoGroup], c.Labels[labelWorkload], c.Name)
	out := w.inline(spec, labels, c.Namespace, name)
	out.config = c
	return out
}

// healthy reports whether a WorkloadEntry may have connections: it is not checked, or its status says
// that it is healthy. One that is checked and was not found healthy yet is not, as in Istio.
func healthy(c *config.Config) bool {
	if checked, err := strconv.ParseBool(c.Annotations[AnnotationHealthChecks]); err != nil || !checked {
		return true
	}
	status, ok := c.Status.(*meta.IstioStatus)
	if !ok {
		return false
	}
	i := slices.IndexFunc(status.GetConditions(), func(c *meta.IstioCondition) bool { return c.GetType() == ConditionHealthy })
	return i >= 0 && status.Conditions[i].GetStatus() == "True"
}

// inline returns the workload of an endpoint that a ServiceEntry or a WorkloadEntry describes.
func (w *workloads) inline(spec *networking.WorkloadEntry, labels map[string]string, namespace, name string) *workload {
	locality := cmp.Or(spec.Locality, LabelledLocality(labels))
	network := cmp.Or(spec.Network, w.network(namespace, labels))
	e := Endpoint{
		Address: spec.Address, Locality: locality, Network: network, Cluster: w.options.Cluster, Weight: spec.Weight,
		Labels: w.augment(labels, locality, network, ""), Namespace: namespace, Workload: name,
		HasSidecar: spec.ServiceAccount != "",
	}
	if mode, ok := labels[labelTLSMode]; ok {
		e.HasSidecar = mode == "istio"
	}
	if spec.ServiceAccount != "" {
		e.ServiceAccount = w.options.spiffeID(namespace, spec.ServiceAccount)
	}
	_, err := netip.ParseAddr(spec.Address)
	return &workload{endpoint: e, addresses: []string{spec.Address}, ports: spec.Ports, notIP: err != nil && spec.Address != ""}
}

// ofProxy returns the workload of a proxy, which has an address, from what the proxy says of itself.
func (w *workloads) ofProxy(p Proxy) *workload {
	network, locality := w.network(p.Namespace, p.Labels), cmp.Or(LabelledLocality(p.Labels), nodeLocality(p.Labels))
	return &workload{
		config: &config.Config{Meta: config.Meta{Key: config.Key{Kind: config.Pod, Namespace: p.Namespace}, Labels: p.Labels}},
		endpoint: Endpoint{
			Address: p.Addresses[0], Locality: locality, Network: network, Cluster: w.options.Cluster,
			Labels: w.augment(p.Labels, locality, network, ""), Namespace: p.Namespace,
		},
		addresses: p.Addresses,
	}
}

// unreadyAt returns the workloads of a proxy that are not endpoints, because they are not healthy: their proxies stand before
// them all the same, and have their listeners before the first connection may come. istiod gives them none meanwhile.
func (w *workloads) unreadyAt(p Proxy) (out []*workload) {
	of := w.unready[p.Namespace]
	for _, key := range slices.SortedFunc(maps.Keys(of), compareDocuments) {
		if slices.Contains(p.Addresses, of[key].endpoint.Address) {
			out = append(out, of[key])
		}
	}
	return out
}

// augment adds the labels for locality, network, node and cluster by which subsets may select.
func (w *workloads) augment(labels map[string]string, locality, network, node string) map[string]string {
	out := make(map[string]string, len(labels)+6)
	maps.Copy(out, labels)
	region, rest, _ := strings.Cut(locality, "/")
	zone, rest, _ := strings.Cut(rest, "/")
	subzone, _, _ := strings.Cut(rest, "/")
	for name, value := range map[string]string{
		labelRegion: region, labelZone: zone, labelSubzone: subzone, labelCluster: w.options.Cluster, labelHostname: node,
	} {
		if value != "" {
			out[name] = value
		}
	}
	if network != "" && out[labelNetwork] == "" {
		out[labelNetwork] = network
	}
	return out
}
