package service

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Entries is the registry of ServiceEntries, and of the WorkloadEntries and Pods that they select.
//
// Each host of a ServiceEntry is a service, with all addresses of the entry. Several entries of one
// namespace for one host are one service: that of the oldest, with the ports and addresses of those
// that have the same resolution, labels, selector and visibility, and with the endpoints of all that
// have the same resolution. A change of a document costs the services that it is part of.
//
// A service without an address has automatic ones, if its host is no wildcard (but for DYNAMIC_DNS), its
// resolution is not NONE, and the entry does not opt out: those in the entry's status, or else those of
// an allocation. An address that an older service has so is not that of a younger entry that names it.
type Entries struct {
	registry
	workloads workloads
	auto      *allocation
	entries   map[config.Key]*entry
	// hosts has the entries of each service, oldest first.
	hosts map[Key][]*entry
	// selectors has the entries with a selector by namespace.
	selectors map[string]map[config.Key]*entry
}

// entry is a ServiceEntry.
type entry struct {
	config     *config.Config
	spec       *networking.ServiceEntry
	resolution Resolution
	keys       []Key
	addresses  []string
	// its are those of the addresses that no older service has, as of a generation of the allocation.
	its        []string
	generation uint64
	// assigned are automatic addresses of its hosts that are in its status.
	assigned map[Hostname][]string
	// inline are the endpoints that it lists; selected are those of the workloads that it selects.
	inline   []*Endpoint
	selected selection
}

// NewEntries returns a registry that follows a cache from its Run on. It must be called before that.
func NewEntries(cache config.Cache, options Options) *Entries {
	r := &Entries{
		registry: newRegistry(External, options), entries: map[config.Key]*entry{}, hosts: map[Key][]*entry{},
		selectors: map[string]map[config.Key]*entry{}, auto: newAllocation(),
	}
	r.workloads = newWorkloads(&r.options)
	cache.RegisterHandler(config.ServiceEntry, r.onEntry)
	cache.RegisterHandler(config.WorkloadEntry, r.onWorkload)
	cache.RegisterHandler(config.Pod, r.onWorkload)
	cache.RegisterHandler(config.Namespace, r.onNamespace)
	cache.RegisterHandler(config.Node, r.onNode)
	cache.RegisterHandler(config.MeshConfig, r.onMesh)
	return r
}

func (r *Entries) onEntry(e config.Event) {
	r.mu.Lock()
	touched := map[Key]struct{}{}
	r.replace(e.Key(), e.New, touched)
	outcomes := r.rebuild(touched)
	r.mu.Unlock()
	r.publish(outcomes)
}

func (r *Entries) onWorkload(e config.Event) {
	r.mu.Lock()
	touched := map[Key]struct{}{}
	r.move(r.workloads.set(e), touched)
	outcomes := r.rebuild(touched)
	r.mu.Unlock()
	r.publish(outcomes)
}

func (r *Entries) onNamespace(e config.Event) {
	r.mu.Lock()
	touched := map[Key]struct{}{}
	changed, workloads := r.workloads.setNamespace(e)
	for _, t := range workloads {
		r.move(t, touched)
	}
	if changed { // inline endpoints have the network too
		for key, en := range maps.Clone(r.entries) {
			if key.Namespace == e.Key().Name {
				r.replace(key, en.config, touched)
			}
		}
	}
	outcomes := r.rebuild(touched)
	r.mu.Unlock()
	r.publish(outcomes)
}

func (r *Entries) onNode(e config.Event) {
	r.mu.Lock()
	touched := map[Key]struct{}{}
	for _, t := range r.workloads.setNode(e) {
		r.move(t, touched)
	}
	outcomes := r.rebuild(touched)
	r.mu.Unlock()
	r.publish(outcomes)
}

// onMesh takes in the trust domain, which is part of the service accounts of endpoints.
func (r *Entries) onMesh(e config.Event) {
	r.mu.Lock()
	touched := map[Key]struct{}{}
	if r.setTrustDomain(e) {
		for _, t := range r.workloads.again(func(*workload) bool { return true }) {
			r.move(t, touched)
		}
		for key, en := range maps.Clone(r.entries) {
			r.replace(key, en.config, touched)
		}
	}
	outcomes := r.rebuild(touched)
	r.mu.Unlock()
	r.publish(outcomes)
}

// replace replaces an entry, nil removes it, and notes the services that this touches.
func (r *Entries) replace(key config.Key, c *config.Config, touched map[Key]struct{}) {
	if old := r.entries[key]; old != nil {
		for _, k := range old.keys {
			touched[k] = struct{}{}
			r.hosts[k] = slices.DeleteFunc(r.hosts[k], func(en *entry) bool { return en == old })
			if len(r.hosts[k]) == 0 {
				delete(r.hosts, k)
			}
		}
		delete(r.entries, key)
		take(r.selectors, key.Namespace, key)
		for _, address := range old.fixed() {
			r.auto.unfix(key, old.config.Age(), address)
		}
	}
	if c == nil {
		return
	}
	en := r.read(c)
	if en == nil {
		return
	}
	r.entries[key] = en
	for _, address := range en.fixed() {
		r.auto.fix(key, c.Age(), address)
	}
	for _, k := range en.keys {
		touched[k] = struct{}{}
		r.hosts[k] = append(r.hosts[k], en)
		slices.SortFunc(r.hosts[k], func(a, b *entry) int { return config.Older(a.config, b.config) })
	}
	if en.spec.WorkloadSelector != nil {
		put(r.selectors, key.Namespace, key, en)
		for wk, w := range r.workloads.byNamespace[key.Namespace] {
			en.choose(wk, w)
		}
	}
}

// move takes in the change of a workload, and notes the services that this touches.
func (r *Entries) move(t transition, touched map[Key]struct{}) {
	if t.old.equal(t.new) {
		return
	}
	for _, en := range r.selectors[t.key.Namespace] {
		if en.choose(t.key, t.new) {
			for _, k := range en.keys {
				touched[k] = struct{}{}
			}
		}
	}
}

// choose sets the endpoints of a workload, nil for one that is gone, if the entry selects it. It
// reports whether that changed anything.
func (en *entry) choose(key config.Key, w *workload) bool {
	isDNS := en.resolution == DNS || en.resolution == DNSRoundRobin
	if w == nil || !selects(en.spec.WorkloadSelector.GetLabels(), w.endpoint.Labels) || w.notIP && !isDNS {
		return en.selected.remove(key)
	}
	en.selected.set(key, en.serve(w))
	return true
}

// serve returns the endpoints of a workload for the ports of the entry.
func (en *entry) serve(w *workload) []*Endpoint {
	out := make([]*Endpoint, 0, len(en.spec.Ports))
	for _, port := range en.spec.Ports {
		number := port.Number
		if port.TargetPort != 0 {
			number = port.TargetPort
		}
		if mapped := w.ports[port.Name]; mapped != 0 {
			number = mapped
		}
		out = append(out, w.at(port.Name, number))
	}
	return out
}

var resolutions = map[networking.ServiceEntry_Resolution]Resolution{
	networking.ServiceEntry_NONE: Passthrough, networking.ServiceEntry_STATIC: ClientSide,
	networking.ServiceEntry_DNS: DNS, networking.ServiceEntry_DNS_ROUND_ROBIN: DNSRoundRobin,
	networking.ServiceEntry_DYNAMIC_DNS: DynamicDNS,
}

// read returns what an entry means, nil if it cannot be used.
func (r *Entries) read(c *config.Config) *entry {
	spec, ok := c.Spec.(*networking.ServiceEntry)
	if !ok {
		r.options.reportf(c, "%T is no ServiceEntry", c.Spec)
		return nil
	}
	resolution, ok := resolutions[spec.Resolution]
	if !ok {
		r.options.reportf(c, "resolution %s is not supported", spec.Resolution)
		return nil
	}
	en := &entry{config: c, spec: spec, resolution: resolution}
	to := r.options.toOf(c.Namespace, spec.ExportTo)
	for _, host := range spec.Hosts {
		if key := (Key{Hostname(host), c.Namespace, to}); !slices.Contains(en.keys, key) {
			en.keys = append(en.keys, key)
		}
	}
	seen := map[string]struct{}{} // there may be tens of thousands
	for _, address := range spec.Addresses {
		normal, err := normalAddress(address)
		switch {
		case err != nil:
			r.options.reportf(c, "address %q: %w", address, err)
		case !member(seen, normal):
			seen[normal] = struct{}{}
			en.addresses = append(en.addresses, normal)
		}
	}
	if status, ok := c.Status.(*networking.ServiceEntryStatus); ok {
		en.assigned = assignedAddresses(status)
		maps.DeleteFunc(en.assigned, func(host Hostname, _ []string) bool { return !en.allocates(host) })
	}
	if spec.WorkloadSelector == nil {
		for i, endpoint := range spec.Endpoints {
			if endpoint.GetAddress() == "" && endpoint.GetNetwork() == "" {
				r.options.reportf(c, "endpoint %d has no address and no network", i)
				continue
			}
			name := fmt.Sprintf("%s-%d", c.Name, i)
			en.inline = append(en.inline, en.serve(r.workloads.inline(endpoint, endpoint.Labels, c.Namespace, name))...)
		}
	} else if len(spec.Endpoints) > 0 {
		r.options.reportf(c, "its endpoints are not used, because it has a workloadSelector")
	}
	return en
}

// labelAllocate is the label of a ServiceEntry that opts out of automatic addresses with "false".
const labelAllocate = "networking.istio.io/enable-autoallocate-ip"

// allocates reports whether a host of the entry has automatic addresses, as in Istio.
func (en *entry) allocates(host Hostname) bool {
	if en.resolution == Passthrough || host.IsWildcard() && en.resolution != DynamicDNS {
		return false
	}
	return len(en.spec.Addresses) == 0 && !strings.EqualFold(en.config.Labels[labelAllocate], "false")
}

// assignedAddresses returns the addresses in a status by host.
func assignedAddresses(status *networking.ServiceEntryStatus) map[Hostname][]string {
	out := map[Hostname][]string{}
	for _, a := range status.GetAddresses() {
		if ip, err := netip.ParseAddr(a.GetValue()); err == nil {
			host := Hostname(a.GetHost())
			out[host] = appendNew(out[host], []string{ip.String()})
		}
	}
	return out
}

// fixed returns the addresses that the entry names, in any order.
func (en *entry) fixed() []string {
	out := slices.Clone(en.addresses)
	for _, addresses := range en.assigned {
		out = append(out, addresses...)
	}
	return out
}

// allocate claims automatic addresses for services, or gives them up, and adds the services whose address changed. Which services need
// one depends on the addresses that older ones have: an address in a status may be one of these.
func (r *Entries) allocate(touched map[Key]struct{}) {
	for changed := maps.Clone(touched); len(changed) > 0; {
		for key := range changed {
			if entries := r.hosts[key]; r.needsAddress(key, entries) {
				r.auto.set(key, entries[0].config.Age())
			} else {
				r.auto.remove(key)
			}
		}
		moved, lost := r.auto.take()
		for document := range lost {
			if en := r.entries[document]; en != nil {
				for _, key := range en.keys {
					moved[key] = struct{}{}
				}
			}
		}
		maps.Copy(touched, moved)
		changed = moved
	}
}

// needsAddress reports whether a service of the entries of its host needs an automatic address: none of its entries names an address, also
// if that is not theirs, and its status has none.
func (r *Entries) needsAddress(key Key, entries []*entry) bool {
	if len(entries) == 0 || !entries[0].allocates(key.Hostname) || len(r.assigned(key, entries[0])) > 0 {
		return false
	}
	return !slices.ContainsFunc(r.joined(entries), func(en *entry) bool { return len(en.addresses) > 0 })
}

// addresses returns the addresses that an entry names, without those that an older service has. Its services share them.
func (r *Entries) addresses(en *entry) []string {
	if now := r.auto.settled(); en.its == nil || en.generation != now {
		en.generation = now
		if its := r.auto.without(en.addresses, en.config.Age()); en.its == nil || !slices.Equal(its, en.its) {
			en.its = its
		}
	}
	return en.its
}

// assigned returns the automatic addresses of a service that are in the status of its oldest entry, without those that an older service has.
func (r *Entries) assigned(key Key, en *entry) []string {
	if len(en.assigned[key.Hostname]) == 0 {
		return nil
	}
	return r.auto.without(en.assigned[key.Hostname], en.config.Age())
}

// rebuild sets the services that were touched.
func (r *Entries) rebuild(touched map[Key]struct{}) []outcome {
	var out []outcome
	r.allocate(touched)
	for _, key := range slices.SortedFunc(maps.Keys(touched), CompareKeys) {
		entries := r.hosts[key]
		if len(entries) == 0 {
			out = append(out, r.set(key, nil, nil))
			continue
		}
		var endpoints []*Endpoint
		for _, en := range entries {
			if en.resolution == entries[0].resolution {
				endpoints = append(endpoints, r.endpointsOf(en, key)...)
			}
		}
		if entries[0].resolution == DNSRoundRobin {
			endpoints = firstOfEachPort(endpoints)
		}
		out = append(out, r.set(key, r.service(key, entries), endpoints))
	}
	return out
}

// endpointsOf returns the endpoints that an entry has for one of its hosts, in a stable order: those
// of selected workloads by kind and name, or those listed in the document. With DNS and neither it
// is the host itself.
func (r *Entries) endpointsOf(en *entry, key Key) []*Endpoint {
	isDNS := en.resolution == DNS || en.resolution == DNSRoundRobin
	if en.spec.WorkloadSelector == nil && len(en.spec.Endpoints) == 0 && isDNS && !key.Hostname.IsWildcard() {
		w := &workload{endpoint: Endpoint{
			Address: string(key.Hostname), Cluster: r.options.Cluster, Namespace: key.Namespace, Workload: en.config.Name,
		}}
		return en.serve(w)
	}
	if en.spec.WorkloadSelector != nil {
		return en.selected.appendTo(nil)
	}
	return en.inline
}

// firstOfEachPort returns the first endpoint of each port: the proxy resolves only one name.
func firstOfEachPort(endpoints []*Endpoint) []*Endpoint {
	var out []*Endpoint
	for _, e := range endpoints {
		if !slices.ContainsFunc(out, func(o *Endpoint) bool { return o.PortName == e.PortName }) {
			out = append(out, e)
		}
	}
	return out
}

// service returns the service that the entries of a host describe together, at least one, the oldest
// first.
func (r *Entries) service(key Key, entries []*entry) *Service {
	oldest := r.describe(key, entries[0])
	for _, en := range r.joined(entries)[1:] {
		s := r.describe(key, en)
		for _, port := range s.Ports {
			if _, ok := oldest.Port(port.Number); !ok {
				oldest.Ports = append(oldest.Ports, port)
			}
		}
		oldest.Addresses = appendNew(oldest.Addresses, s.Addresses)
		oldest.ServiceAccounts = appendNew(oldest.ServiceAccounts, s.ServiceAccounts)
	}
	slices.Sort(oldest.ServiceAccounts)
	if len(oldest.Addresses) == 0 {
		oldest.AutoAddresses = r.assigned(key, entries[0])
		if len(oldest.AutoAddresses) == 0 {
			oldest.AutoAddresses = r.auto.of(key)
		}
	}
	return oldest
}

// joined returns the entries of a host that describe one service together: the oldest, and those that add ports and addresses to it.
func (r *Entries) joined(entries []*entry) []*entry {
	out := entries[:1:1]
	for _, en := range entries[1:] {
		if r.joins(entries[0], en) {
			out = append(out, en)
		}
	}
	return out
}

// toOf returns Key.To of what a document is exported to.
func (o *Options) toOf(namespace string, exportTo []string) string {
	set := o.exportTo(namespace, exportTo)
	if len(exportTo) == 0 || set["*"] {
		return ""
	}
	return strings.Join(slices.Sorted(maps.Keys(set)), ",")
}

// joins reports whether a younger entry of a host adds ports and addresses to the service of an older one.
func (r *Entries) joins(older, younger *entry) bool {
	to := func(en *entry) map[string]bool { return r.options.exportTo(en.config.Namespace, en.spec.ExportTo) }
	return older.resolution == younger.resolution && maps.Equal(older.config.Labels, younger.config.Labels) && maps.Equal(to(older), to(younger)) &&
		maps.Equal(older.spec.WorkloadSelector.GetLabels(), younger.spec.WorkloadSelector.GetLabels())
}

func appendNew(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// describe returns the service that an entry alone describes for one of its hosts.
func (r *Entries) describe(key Key, en *entry) *Service {
	s := &Service{
		Hostname: key.Hostname, Namespace: key.Namespace, To: key.To, Name: en.config.Name, Resolution: en.resolution,
		MeshExternal: en.spec.Location == networking.ServiceEntry_MESH_EXTERNAL,
		ExportTo:     r.options.exportTo(key.Namespace, en.spec.ExportTo), DefaultExport: len(en.spec.ExportTo) == 0,
		Labels: en.config.Labels, ServiceAccounts: appendNew(nil, en.spec.SubjectAltNames),
		Distribution: ParseDistribution(en.config.Annotations[annotationDistribution]),
		Addresses:    slices.Clip(r.addresses(en)), Age: en.config.Age(), Registry: r.shard.Registry, Origin: en.config.Key,
	}
	for _, port := range en.spec.Ports {
		p := Port{Name: port.Name, Number: port.Number, Protocol: ParseProtocol(port.Protocol)}
		if en.resolution == Passthrough && port.TargetPort != port.Number {
			p.TargetPort = port.TargetPort
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// normalAddress returns an IP address or a prefix; a prefix of one address is that address.
func normalAddress(address string) (string, error) {
	if _, err := netip.ParseAddr(address); err == nil {
		return address, nil
	}
	prefix, err := netip.ParsePrefix(address)
	switch {
	case err != nil:
		return "", errors.New("it is neither an IP address nor a prefix")
	case prefix.IsSingleIP():
		return prefix.Addr().String(), nil
	}
	return address, nil
}

// ProxyInstances returns the instances that run at the addresses of a proxy, of services in the
// proxy's namespace (in any, if it has none). If there are none, they are those of the entries of
// its namespace that select its labels.
func (r *Entries) ProxyInstances(p Proxy) []Instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []Instance
	for _, address := range p.Addresses {
		out = append(out, r.at(address, p.Namespace)...)
	}
	if len(out) > 0 || len(p.Addresses) == 0 {
		return out
	}
	for _, w := range r.workloads.unreadyAt(p) {
		out = append(out, r.selecting(w, w.endpoint.Labels, p.Namespace)...)
	}
	if len(out) > 0 {
		return out
	}
	return r.selecting(r.workloads.ofProxy(p), p.Labels, p.Namespace)
}

// selecting returns the instances of the services of a namespace whose entries select labels, at a workload.
func (r *Entries) selecting(w *workload, labels map[string]string, namespace string) (out []Instance) {
	entries := r.selectors[namespace]
	for _, key := range slices.SortedFunc(maps.Keys(entries), compareDocuments) {
		en := entries[key]
		if !selects(en.spec.WorkloadSelector.GetLabels(), labels) {
			continue
		}
		endpoints := en.serve(w)
		for _, k := range en.keys {
			out = append(out, instancesOf(r.services[k], endpoints)...)
		}
	}
	return out
}
