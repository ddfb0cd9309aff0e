package service

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Kubernetes is the registry of Kubernetes' Services, EndpointSlices and Pods, and of the
// WorkloadEntries that Services select as in Istio.
//
// The endpoints of a Service are those of its EndpointSlices, with what the Pods say of them. A
// directory of documents has no controller that writes EndpointSlices; so a Service that has a
// selector and no EndpointSlice at all has the Pods that it selects as endpoints, at the addresses
// in their status. An endpoint whose slice names a Pod that is not known is left out until the Pod
// is there, because it is not known whether it accepts mTLS.
//
// The locality of a Pod is that of its label istio-locality, or else of its Node, or else of its own
// topology labels; that of an endpoint without a Pod is that of the node or the zone in its slice.
// EndpointSlices of DNS names are not supported.
type Kubernetes struct {
	registry
	workloads workloads
	objects   map[config.Key]*object // Services
	// inNamespace has the Services with a selector by namespace.
	inNamespace map[string]map[config.Key]*object
	slices      map[config.Key]*slice
	byService   map[config.Key]map[config.Key]*slice
	// mentioned has the slices whose endpoints depend on a Pod.
	mentioned map[mention]map[config.Key]struct{}
	pods      map[string]map[config.Key]struct{} // by address
}

// object is a Service.
type object struct {
	config *config.Config
	spec   *corev1.Service
	key    Key
	// selected has the endpoints of the workloads that it selects: WorkloadEntries, and Pods if it
	// has no EndpointSlice.
	selected selection
}

// NewKubernetes returns a registry that follows a cache from its Run on. It must be called before
// that.
func NewKubernetes(cache config.Cache, options Options) *Kubernetes {
	r := &Kubernetes{
		registry: newRegistry(kubernetes, options), objects: map[config.Key]*object{},
		inNamespace: map[string]map[config.Key]*object{}, slices: map[config.Key]*slice{},
		byService: map[config.Key]map[config.Key]*slice{}, mentioned: map[mention]map[config.Key]struct{}{},
		pods: map[string]map[config.Key]struct{}{},
	}
	r.workloads = newWorkloads(&r.options)
	type touched = map[config.Key]struct{}
	for kind, handle := range map[config.Kind]func(config.Event, touched){
		config.Service: r.onService, config.EndpointSlice: r.onSlice, config.Pod: r.onWorkload,
		config.WorkloadEntry: r.onWorkload, config.Namespace: r.onNamespace, config.Node: r.onNode, config.MeshConfig: r.onMesh,
	} {
		cache.RegisterHandler(kind, func(e config.Event) {
			r.mu.Lock()
			services := touched{}
			handle(e, services)
			outcomes := r.rebuild(services)
			r.mu.Unlock()
			r.publish(outcomes)
		})
	}
	return r
}

func (r *Kubernetes) onService(e config.Event, touched map[config.Key]struct{}) {
	key := e.Key()
	touched[key] = struct{}{}
	delete(r.objects, key)
	take(r.inNamespace, key.Namespace, key)
	if e.New != nil {
		spec, ok := e.New.Spec.(*corev1.Service)
		if !ok {
			r.options.reportf(e.New, "%T is no Service", e.New.Spec)
			return
		}
		o := &object{config: e.New, spec: spec, key: r.keyOf(key)}
		r.objects[key] = o
		if len(spec.Spec.Selector) > 0 && spec.Spec.Type != corev1.ServiceTypeExternalName {
			put(r.inNamespace, key.Namespace, key, o)
		}
		r.selectAll(o)
	}
	for _, s := range r.byService[key] { // whether endpoints drain depends on the Service
		r.readEndpoints(s)
	}
}

// keyOf returns the key of the service that a Service describes.
func (r *Kubernetes) keyOf(key config.Key) Key {
	return Key{Hostname(key.Name + "." + key.Namespace + ".svc." + r.options.domain()), key.Namespace, ""}
}

func (r *Kubernetes) onSlice(e config.Event, touched map[config.Key]struct{}) {
	old := r.slices[e.Key()]
	var s *slice
	if e.New != nil {
		s = r.readSlice(e.New)
	}
	had := map[config.Key]bool{} // whether a Service had slices
	for _, of := range []*slice{old, s} {
		if of != nil {
			had[of.service] = len(r.byService[of.service]) > 0
			touched[of.service] = struct{}{}
		}
	}
	if old != nil {
		r.forget(old)
	}
	if s != nil {
		r.slices[e.Key()] = s
		put(r.byService, s.service, e.Key(), s)
		r.readEndpoints(s)
	}
	for key, before := range had {
		if o := r.objects[key]; o != nil && before != (len(r.byService[key]) > 0) {
			r.selectAll(o)
		}
	}
}

func (r *Kubernetes) onWorkload(e config.Event, touched map[config.Key]struct{}) {
	r.move(r.workloads.set(e), touched)
}

func (r *Kubernetes) onNamespace(e config.Event, touched map[config.Key]struct{}) {
	changed, workloads := r.workloads.setNamespace(e)
	if !changed {
		return
	}
	for _, t := range workloads {
		r.move(t, touched)
	}
	for _, s := range r.slices { // endpoints without a Pod have the network too
		if s.config.Namespace == e.Key().Name {
			r.readEndpoints(s)
			touched[s.service] = struct{}{}
		}
	}
}

func (r *Kubernetes) onNode(e config.Event, touched map[config.Key]struct{}) {
	name, before := e.Key().Name, r.workloads.nodes[e.Key().Name]
	moved := r.workloads.setNode(e)
	if r.workloads.nodes[name] == before {
		return
	}
	for _, t := range moved {
		r.move(t, touched)
	}
	for _, s := range r.slices {
		if s.isOn(name) {
			r.readEndpoints(s)
			touched[s.service] = struct{}{}
		}
	}
}

// onMesh takes in the trust domain, which is part of the service accounts of services and endpoints.
func (r *Kubernetes) onMesh(e config.Event, touched map[config.Key]struct{}) {
	if !r.setTrustDomain(e) {
		return
	}
	for key := range r.objects {
		touched[key] = struct{}{}
	}
	for _, t := range r.workloads.again(func(*workload) bool { return true }) {
		r.move(t, touched)
	}
}

// move takes in the change of a workload, and notes the Services that this touches.
func (r *Kubernetes) move(t transition, touched map[config.Key]struct{}) {
	if t.old.equal(t.new) {
		return
	}
	mentions := map[mention]struct{}{{t.key.Namespace, t.key.Name, true}: {}}
	for _, w := range []*workload{t.old, t.new} {
		if w == nil || t.key.Kind != config.Pod {
			continue
		}
		for _, address := range w.addresses {
			mentions[mention{t.key.Namespace, address, false}] = struct{}{}
			if w == t.new {
				with(r.pods, address, t.key)
			} else {
				without(r.pods, address, t.key)
			}
		}
	}
	for m := range mentions {
		for key := range r.mentioned[m] {
			r.readEndpoints(r.slices[key])
			touched[r.slices[key].service] = struct{}{}
		}
	}
	for key, o := range r.inNamespace[t.key.Namespace] {
		if r.choose(o, t.key, t.new) {
			touched[key] = struct{}{}
		}
	}
}

// selectAll sets the endpoints of all workloads that a Service selects.
func (r *Kubernetes) selectAll(o *object) {
	o.selected = selection{}
	if r.inNamespace[o.config.Namespace][o.config.Key] == nil {
		return
	}
	for key, w := range r.workloads.byNamespace[o.config.Namespace] {
		r.choose(o, key, w)
	}
}

// choose sets the endpoints of a workload, nil for one that is gone, if the Service selects it. It
// reports whether that changed anything.
func (r *Kubernetes) choose(o *object, key config.Key, w *workload) bool {
	if w == nil || !selects(o.spec.Spec.Selector, w.selectable()) || !r.serves(o, w) {
		return o.selected.remove(key)
	}
	o.selected.set(key, o.serve(w))
	return true
}

// serves reports whether a workload that a Service selects is an endpoint of it: a Pod is if the
// Service has no slices, and a WorkloadEntry with an IP address is if the Service is not headless.
func (r *Kubernetes) serves(o *object, w *workload) bool {
	if w.isPod() {
		return len(r.byService[o.config.Key]) == 0
	}
	return !w.notIP && o.spec.Spec.ClusterIP != corev1.ClusterIPNone
}

// selectable returns the labels by which Services select a workload.
func (w *workload) selectable() map[string]string {
	if w.isPod() {
		return w.config.Labels
	}
	return w.endpoint.Labels
}

// serve returns the endpoints of a workload for the ports of a Service: at its first address, or at
// all of them if the Service has addresses of both families.
func (o *object) serve(w *workload) []*Endpoint {
	addresses := w.addresses
	if len(o.spec.Spec.ClusterIPs) < 2 && len(o.spec.Spec.IPFamilies) < 2 {
		addresses = addresses[:1]
	}
	at := *w
	if at.endpoint.Health == UnHealthy && o.spec.Spec.PublishNotReadyAddresses {
		at.endpoint.Health = Healthy
	}
	var out []*Endpoint
	for _, address := range addresses {
		at.endpoint.Address = address
		for _, port := range o.spec.Spec.Ports {
			if number := w.target(port); number != 0 {
				out = append(out, at.at(port.Name, number))
			}
		}
	}
	return out
}

// target returns the port of a workload that a port of a Service stands for, 0 for none.
func (w *workload) target(port corev1.ServicePort) uint32 {
	name := port.TargetPort.StrVal
	if mapped := cmp.Or(w.ports[name], w.ports[port.Name]); mapped != 0 {
		return mapped
	}
	if name != "" {
		return w.named[namedPort{name, cmp.Or(port.Protocol, corev1.ProtocolTCP)}]
	}
	return uint32(cmp.Or(port.TargetPort.IntVal, port.Port))
}

// rebuild sets the services of the Services that were touched.
func (r *Kubernetes) rebuild(touched map[config.Key]struct{}) []outcome {
	var out []outcome
	for _, key := range slices.SortedFunc(maps.Keys(touched), compareDocuments) {
		o := r.objects[key]
		if o == nil {
			out = append(out, r.set(r.keyOf(key), nil, nil))
			continue
		}
		out = append(out, r.set(o.key, r.describe(o), r.endpointsOf(o)))
	}
	return out
}

// endpointsOf returns the endpoints of a Service in a stable order: those of its slices by the
// slices' names, then those of the workloads that it selects by kind and name. An endpoint that moves
// between slices may be in both: of two for one address and port, the first counts.
func (r *Kubernetes) endpointsOf(o *object) []*Endpoint {
	if o.spec.Spec.Type == corev1.ServiceTypeExternalName {
		return r.external(o)
	}
	bySlice := r.byService[o.config.Key]
	if len(bySlice) == 0 {
		return o.selected.appendTo(nil)
	}
	var all []*Endpoint
	for _, key := range slices.SortedFunc(maps.Keys(bySlice), compareDocuments) {
		all = append(all, bySlice[key].endpoints...)
	}
	all = o.selected.appendTo(all)
	type place struct{ address, port string }
	seen := make(map[place]struct{}, len(all))
	return slices.DeleteFunc(all, func(e *Endpoint) bool {
		at := place{e.Address, e.PortName}
		twice := member(seen, at)
		seen[at] = struct{}{}
		return twice
	})
}

func member[K comparable](set map[K]struct{}, k K) bool {
	_, ok := set[k]
	return ok
}

// external returns the endpoints of a Service that is another name for a host: one for each port.
func (r *Kubernetes) external(o *object) []*Endpoint {
	var out []*Endpoint
	for _, port := range o.spec.Spec.Ports {
		if o.spec.Spec.ExternalName != "" {
			out = append(out, NewEndpoint(Endpoint{
				Address: o.spec.Spec.ExternalName, Port: uint32(cmp.Or(port.TargetPort.IntVal, port.Port)), PortName: port.Name,
				Cluster: r.options.Cluster, Namespace: o.config.Namespace, Workload: o.config.Name,
			}))
		}
	}
	return out
}

// Annotations of a Service.
const (
	annotationExportTo          = "networking.istio.io/exportTo"
	annotationCanonicalAccounts = "alpha.istio.io/canonical-serviceaccounts"
	annotationAccounts          = "alpha.istio.io/kubernetes-serviceaccounts"
)

// describe returns the service that a Service describes.
func (r *Kubernetes) describe(o *object) *Service {
	c, spec := o.config, &o.spec.Spec
	exportTo := list(c.Annotations[annotationExportTo])
	s := &Service{
		Hostname: o.key.Hostname, Namespace: c.Namespace, Name: c.Name, Labels: c.Labels, Age: c.Age(),
		Registry: kubernetes, Origin: c.Key, ExportTo: r.options.exportTo(c.Namespace, exportTo), DefaultExport: len(exportTo) == 0,
		ServiceAccounts: list(c.Annotations[annotationCanonicalAccounts]),
		Distribution:    ParseDistribution(c.Annotations[annotationDistribution]),
		NodeLocal:       spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	if spec.TrafficDistribution != nil && *spec.TrafficDistribution != "" {
		s.Distribution = ParseDistribution(*spec.TrafficDistribution)
	}
	for _, account := range list(c.Annotations[annotationAccounts]) {
		s.ServiceAccounts = appendNew(s.ServiceAccounts, []string{r.options.spiffeID(c.Namespace, account)})
	}
	slices.Sort(s.ServiceAccounts)
	for _, port := range spec.Ports {
		var appProtocol string
		if port.AppProtocol != nil {
			appProtocol = *port.AppProtocol
		}
		s.Ports = append(s.Ports, Port{
			Name: port.Name, Number: uint32(port.Port), Protocol: ProtocolOf(uint32(port.Port), string(port.Protocol), port.Name, appProtocol),
		})
	}
	switch {
	case spec.Type == corev1.ServiceTypeExternalName:
		s.Resolution, s.MeshExternal = DNS, true
		s.ExternalName = Hostname(strings.ToLower(strings.TrimSuffix(spec.ExternalName, ".")))
		if spec.ExternalName == "" {
			r.options.reportf(c, "it has no externalName")
		}
	case spec.ClusterIP == corev1.ClusterIPNone:
		s.Resolution, s.Headless = Passthrough, true
	case len(spec.ClusterIPs) > 1:
		s.Addresses = spec.ClusterIPs
	case spec.ClusterIP != "":
		s.Addresses = []string{spec.ClusterIP}
	}
	if len(s.Addresses) > 0 {
		s.ClusterVIPs = map[string][]string{r.options.Cluster: s.Addresses}
	}
	return s
}

// list splits the value of an annotation.
func list(text string) []string {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// drains reports whether endpoints of a Service that end still serve the sessions that they have:
// those of Services with persistent sessions, as in Istio.
func (o *object) drains() bool {
	return o != nil && first(o.config.Labels, "istio.io/persistent-session", "istio.io/persistent-session-header") != ""
}

// health returns the health of an endpoint of a slice.
func (o *object) health(c discoveryv1.EndpointConditions) Health {
	is := func(condition *bool, unset bool) bool {
		if condition == nil {
			return unset
		}
		return *condition
	}
	terminating := is(c.Terminating, false)
	switch {
	case is(c.Ready, true):
		return Healthy
	case terminating && o.drains() && is(c.Serving, true):
		return Draining
	case terminating:
		return Terminating
	}
	return UnHealthy
}
