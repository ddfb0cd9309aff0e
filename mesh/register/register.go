// Package register makes connected proxies workloads: a proxy whose Node names a WorkloadGroup of its namespace
// (AUTO_REGISTER_GROUP) becomes a WorkloadEntry with its address and the group's template, while it is connected and for
// a time of grace after that.
//
// It promises that a proxy becomes a workload only if it has authenticated with the namespace and the service account of
// the group, that a document takes precedence over a workload of the same name, and that the registries see changes of
// documents and of workloads one after the other.
//
// The health of a workload is what its agent reports (Report). A workload with a probe, of its group or of the ProxyConfig
// of its proxy, is an endpoint from the first report on that says that it is healthy; one without a probe is an endpoint at
// once, and until a report says otherwise. What was reported holds while the workload is registered, also over a reconnect.
// A workload that is an endpoint does not cease to be one because nothing is known: only a report makes it unhealthy.
//
// Workloads and their health survive a restart of the control plane if Load names a file. Other replicas of the control
// plane do not know its workloads. All methods may be called by several goroutines at once; RegisterHandler must be called
// before the Run of the cache.
package register

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Grace is how long a workload stays after its proxy has disconnected, as with istiod.
const Grace = 10 * time.Second

// Registrar is a config.Cache with a WorkloadEntry for each workload that has registered, for the registries of services.
// Create one with New.
type Registrar struct {
	config.Cache
	log *slog.Logger

	// events is held while handlers are called.
	events   sync.Mutex
	handlers map[config.Kind][]func(config.Event)
	members  map[identity]*member
	// holders has, by the key of a WorkloadEntry, the workload that has registered as it.
	holders map[config.Key]*member
	path    string // of the file in which they are kept; "" for none
	changed chan struct{}
}

// identity says who registers as what. Whoever may not register does not disturb a workload that does.
type identity struct {
	key           config.Key // of the WorkloadEntry
	account       string
	authenticated bool
}

func identityOf(p *proxy.Proxy) identity {
	return identity{keyOf(p), p.ServiceAccount, p.Authenticated}
}

// member is a workload that registers.
type member struct {
	identity
	group     config.Key
	proxy     *proxy.Proxy    // that connected last
	connected map[uint64]bool // the numbers of its streams
	leaving   *time.Timer     // nil while it is connected
	// entry is what the registries have; nil for nothing.
	entry *config.Config
	// refused is why the workload is not registered, "" if it is; it is logged once.
	refused string
	health  health
}

// New returns a Registrar of the documents of a cache.
func New(cache config.Cache, log *slog.Logger) *Registrar {
	r := &Registrar{Cache: cache, log: log, handlers: make(map[config.Kind][]func(config.Event)), members: make(map[identity]*member), holders: make(map[config.Key]*member), changed: make(chan struct{}, 1)}
	cache.RegisterHandler(config.WorkloadGroup, r.onGroup)
	return r
}

// RegisterHandler is that of config.Cache.
func (r *Registrar) RegisterHandler(kind config.Kind, handler func(config.Event)) {
	r.events.Lock()
	defer r.events.Unlock()
	if r.handlers[kind] == nil {
		r.Cache.RegisterHandler(kind, r.forward)
	}
	r.handlers[kind] = append(r.handlers[kind], handler)
}

// forward hands on a change of a document.
func (r *Registrar) forward(e config.Event) {
	r.events.Lock()
	defer r.events.Unlock()
	if m := r.holders[e.Key()]; m != nil && e.Old == nil {
		e.Old, m.entry = m.entry, nil
		delete(r.holders, e.Key())
	}
	r.call(e)
	if e.New == nil {
		r.succeed(e.Key())
	}
}

// succeed lets a workload register as a WorkloadEntry that nobody has any more: the one whose account comes first of several.
func (r *Registrar) succeed(key config.Key) {
	var waiting []*member
	for _, m := range r.members {
		if m.key == key {
			waiting = append(waiting, m)
		}
	}
	slices.SortFunc(waiting, func(a, b *member) int { return cmp.Compare(a.account, b.account) })
	for _, m := range waiting {
		r.update(m)
	}
}

// call calls the handlers of a change. It is called with events held.
func (r *Registrar) call(e config.Event) {
	wake.Signal(r.changed)
	for _, handler := range r.handlers[e.Key().Kind] {
		handler(e)
	}
}

// onGroup takes in a change of a WorkloadGroup, for the workloads that are connected.
func (r *Registrar) onGroup(e config.Event) {
	r.events.Lock()
	defer r.events.Unlock()
	for _, m := range r.members {
		if m.group == e.Key() {
			r.update(m)
		}
	}
}

// Connect registers the workload of a proxy that has connected, if its Node names a WorkloadGroup. A workload whose group
// does not exist yet is registered once it does. connection is the number of its stream, which grows.
func (r *Registrar) Connect(p *proxy.Proxy, connection uint64) {
	if p.AutoRegisterGroup == "" {
		return
	}
	r.events.Lock()
	defer r.events.Unlock()
	m := r.memberOf(p)
	if m.leaving != nil {
		m.leaving.Stop()
		m.leaving = nil
	}
	m.proxy = p
	m.connected[connection] = true
	r.awaitReport(m)
	r.update(m)
}

// Disconnect forgets the workload of a proxy of which a stream has ended, if it was the last one, after the time of grace and
// unless it connects again.
func (r *Registrar) Disconnect(p *proxy.Proxy, connection uint64) {
	if p.AutoRegisterGroup == "" {
		return
	}
	r.events.Lock()
	defer r.events.Unlock()
	m := r.members[identityOf(p)]
	if m == nil || !m.connected[connection] {
		return
	}
	delete(m.connected, connection)
	if m.health.reporter == connection {
		m.health.reporter = 0
	}
	if len(m.connected) > 0 {
		r.awaitReport(m)
		return
	}
	r.leave(m, Grace)
}

// leave forgets a workload after a time, unless its proxy connects before. It is called with events held.
func (r *Registrar) leave(m *member, after time.Duration) {
	var leaving *time.Timer
	leaving = time.AfterFunc(after, func() {
		r.events.Lock()
		defer r.events.Unlock()
		if m.leaving != leaving {
			return // it has connected again
		}
		delete(r.members, m.identity)
		stop(m.health.waiting)
		stop(m.health.forgetting)
		if m.entry != nil {
			r.log.Info("a workload is removed", "name", m.key.String(), "group", m.group.Name)
			delete(r.holders, m.key)
			r.call(config.Event{Old: m.entry})
			r.succeed(m.key)
		}
	})
	m.leaving = leaving
}

// update makes the WorkloadEntry of a workload anew. It is called with events held.
func (r *Registrar) update(m *member) {
	before := m.entry
	if r.Get(m.key) != nil {
		return // a document has precedence
	}
	m.entry = r.entryOf(m)
	if m.entry != nil && m.entry.Annotations[service.AnnotationHealthChecks] == "" {
		m.health.unchecked = true
	}
	switch {
	case before == nil && m.entry == nil:
		return
	case before != nil && m.entry != nil && config.ContentVersion(before) == config.ContentVersion(m.entry):
		m.entry = before
		return
	case before == nil:
		r.holders[m.key] = m
		r.log.Info("a workload has registered", "name", m.key.String(), "group", m.group.Name, "node", m.proxy.Node)
	case m.entry == nil:
		delete(r.holders, m.key)
		r.log.Info("a workload is removed", "name", m.key.String(), "group", m.group.Name)
	}
	r.call(config.Event{Old: before, New: m.entry})
}

// entryOf returns the WorkloadEntry of a workload; nil if it may not register.
func (r *Registrar) entryOf(m *member) *config.Config {
	group := r.Get(m.group)
	refused := refusal(m.proxy, group)
	if holder := r.holders[m.key]; refused == "" && holder != nil && holder != m {
		refused = "the node " + holder.proxy.Node + " of the service account " + holder.account + " has registered with this address"
	}
	if refused != "" && refused != m.refused {
		r.log.Warn("a workload is not registered", "name", m.key.String(), "node", m.proxy.Node, "err", refused)
	}
	if m.refused = refused; refused != "" {
		return nil
	}
	return entry(m, group)
}

// Entries returns the WorkloadEntries that the registered workloads would be with other documents, in no order.
func (r *Registrar) Entries(documents config.Reader) (out []*config.Config) {
	r.events.Lock()
	defer r.events.Unlock()
	for _, m := range r.holders {
		if group := documents.Get(m.group); refusal(m.proxy, group) == "" && documents.Get(m.key) == nil {
			out = append(out, entry(m, group))
		}
	}
	return out
}

// Registered returns the WorkloadEntries of the workloads that have registered, of a namespace or "" for all, in the order of
// their keys. They must not be changed.
func (r *Registrar) Registered(namespace string) (out []*config.Config) {
	r.events.Lock()
	defer r.events.Unlock()
	for key, m := range r.holders {
		if namespace == "" || key.Namespace == namespace {
			out = append(out, m.entry)
		}
	}
	slices.SortFunc(out, func(a, b *config.Config) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}

// refusal returns why a proxy may not register in a group, which may be nil; "" if it may.
func refusal(p *proxy.Proxy, group *config.Config) string {
	if group == nil {
		return "there is no WorkloadGroup " + p.Namespace + "/" + p.AutoRegisterGroup
	}
	account := group.Spec.(*networking.WorkloadGroup).GetTemplate().GetServiceAccount()
	switch {
	case !p.Authenticated:
		return "the proxy has not authenticated: it must connect to --tls-listen with a certificate or a token"
	case account != "" && account != p.ServiceAccount:
		return "the service account of the WorkloadGroup is " + account + ", and that of the proxy " + p.ServiceAccount
	}
	return ""
}

// entry returns the WorkloadEntry of a workload that may register: what its Node says comes before what the group says of
// its members, and that before the template.
func entry(m *member, group *config.Config) *config.Config {
	spec, p := group.Spec.(*networking.WorkloadGroup), m.proxy
	out := spec.GetTemplate().DeepCopy()
	out.Address = p.IPs[0].String()
	out.Labels = make(map[string]string)
	for _, labels := range []map[string]string{spec.GetTemplate().GetLabels(), spec.GetMetadata().GetLabels(), p.GivenLabels} {
		maps.Copy(out.Labels, labels)
	}
	delete(out.Labels, "istio-locality") // it is the locality already
	if p.Network != "" {
		out.Network = p.Network
	}
	out.Locality = cmp.Or(localityOf(p), out.Locality)
	annotations := make(map[string]string)
	maps.Copy(annotations, spec.GetMetadata().GetAnnotations())
	delete(annotations, service.AnnotationHealthChecks) // setHealth decides
	annotations[service.AnnotationAutoGroup] = group.Name
	c := &config.Config{
		Meta: config.Meta{
			Key: m.key, APIVersion: config.SchemaOf(config.WorkloadEntry).APIVersion(), Labels: out.Labels, Annotations: annotations,
			Created: group.Created, Origin: group.Origin,
		},
		Spec: out,
	}
	setHealth(c, m, spec)
	return c
}

// localityOf returns where a proxy runs: region/zone/subzone; "" for unknown.
func localityOf(p *proxy.Proxy) string {
	l := p.Locality
	return strings.TrimRight(l.GetRegion()+"/"+l.GetZone()+"/"+l.GetSubZone(), "/")
}

// maxName is the length of the longest name of a document.
const maxName = 253

// keyOf returns the key of the WorkloadEntry of a proxy, which has istiod's name.
func keyOf(p *proxy.Proxy) config.Key {
	name := p.AutoRegisterGroup + "-" + strings.ReplaceAll(p.IPs[0].String(), ":", "-")
	if p.Network != "" {
		name += "-" + p.Network
	}
	return config.Key{Kind: config.WorkloadEntry, Namespace: p.Namespace, Name: name[max(0, len(name)-maxName):]}
}
