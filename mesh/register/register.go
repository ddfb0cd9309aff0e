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
// Workloads and their health survive a restart of the control plane if Load names a file.
//
// With Share, the replicas of one store know all workloads: Publish keeps the WorkloadEntry of each registered workload in the
// store, with Istio's annotations and condition (istio.io/autoRegistrationGroup, istio.io/workloadController,
// istio.io/connectedAt, istio.io/disconnectedAt, Healthy). Nothing waits for the store: a workload is registered here at once,
// and its registration in the copy of the store makes no difference here. The registration of another replica is an endpoint
// like any WorkloadEntry, until the proxy connects here. Who has a registration is decided by the time of the connection, which
// grows from one to the next whatever the clocks say: the later one has it, and takes it over with the health that was
// reported. So a proxy may move, with both streams open or none for less than Grace, and no replica removes its workload.
//
// The end of a workload is the deletion of its registration, with its resource version, once the time of grace is over. While
// the store is away nobody knows whether the proxy has moved, and the workload stays (mesh.md M8). Registrations of a replica
// that has died are deleted by the others after OwnerGrace; never because the store, or the list of replicas, cannot be read.
// A registration gives nobody more than any WorkloadEntry of its namespace: who may write those in the store can make endpoints
// there anyway.
//
// All methods may be called by several goroutines at once; RegisterHandler and Share must be called before the Run of the
// cache, and Publish and Keep once.
package register

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/repeats"
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
	// repeats limits the lines that the workloads of an identity can cause.
	repeats *repeats.Limiter

	// events is held while handlers are called.
	events   sync.Mutex
	handlers map[config.Kind][]func(config.Event)
	// documents are the WorkloadEntries of which the handlers of the cache were called: those that the registries have
	// unless a workload takes their place. The cache itself may be ahead of them.
	documents map[config.Key]*config.Config
	members   map[identity]*member
	// candidates are the members by the key of their WorkloadEntry, sorted by account.
	candidates map[config.Key][]*member
	// holders has, by the key of a WorkloadEntry, the workload that has registered as it, and that the registries have.
	holders map[config.Key]*member
	// accounts are the keys that the registries have of workloads that have registered here or at another replica, by account, and accountOf
	// has the account of each. limits bounds them.
	accounts  map[account]map[config.Key]bool
	accountOf map[config.Key]account
	limits    Limits
	// crowded are the workloads that are not registered because of Limits.PerAccount, by account.
	crowded map[account]map[*member]bool
	path    string // of the file in which they are kept; "" for none
	changed chan struct{}
	shared  *publisher // nil for a replica that shares nothing
}

// Limits bounds what those who may register may register as.
type Limits struct {
	// PerAccount is how many workloads of one service account of a namespace may have registered, here and at other replicas; 0 for any
	// number. A node chooses its address, and with it its name.
	PerAccount int
	// AnyAddress allows addresses that mean something else at each machine, or several machines: loopback, link-local, multicast and
	// unspecified ones.
	AnyAddress bool
}

// Limit sets what bounds registrations. It must be called before the Run of the cache.
func (r *Registrar) Limit(l Limits) { r.limits = l }

// account is a service account of a namespace.
type account struct{ namespace, name string }

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
	leaving   *time.Timer     // nil while it is connected, and when it has ended
	// since is when it was connected, in the time of its registration; the zero time if it was connected before a restart only.
	since time.Time
	// left is since when it is not connected; the zero time if it is. told is since when its registration in the store says
	// so, and ended that the time of grace is over and only its registration is left to delete.
	left, told time.Time
	ended      bool
	// entry is what the registries have; nil for nothing.
	entry *config.Config
	// refused is why the workload is not registered, "" if it is; it is logged once.
	refused string
	health  health
}

// accountOf returns the account of which the workload is one.
func (m *member) accountOf() account { return account{m.key.Namespace, m.identity.account} }

// New returns a Registrar of the documents of a cache.
func New(cache config.Cache, log *slog.Logger) *Registrar {
	r := &Registrar{
		Cache: cache, log: log, repeats: repeats.New(maxLines, linesPerSecond), handlers: map[config.Kind][]func(config.Event){config.WorkloadEntry: nil},
		documents: make(map[config.Key]*config.Config), members: make(map[identity]*member),
		candidates: make(map[config.Key][]*member), holders: make(map[config.Key]*member), accounts: make(map[account]map[config.Key]bool), accountOf: make(map[config.Key]account), crowded: make(map[account]map[*member]bool), changed: make(chan struct{}, 1),
	}
	cache.RegisterHandler(config.WorkloadEntry, r.onDocument)
	cache.RegisterHandler(config.WorkloadGroup, r.onGroup)
	return r
}

// RegisterHandler is that of config.Cache.
func (r *Registrar) RegisterHandler(kind config.Kind, handler func(config.Event)) {
	r.events.Lock()
	defer r.events.Unlock()
	if _, registered := r.handlers[kind]; !registered {
		r.Cache.RegisterHandler(kind, r.forward)
	}
	r.handlers[kind] = append(r.handlers[kind], handler)
}

// forward hands on a change of a document.
func (r *Registrar) forward(e config.Event) {
	r.events.Lock()
	defer r.events.Unlock()
	r.call(e)
}

// call calls the handlers of a change. It is called with events held.
func (r *Registrar) call(e config.Event) {
	for _, handler := range r.handlers[e.Key().Kind] {
		handler(e)
	}
}

// onDocument takes in a change of a WorkloadEntry.
func (r *Registrar) onDocument(e config.Event) {
	r.events.Lock()
	defer r.events.Unlock()
	key := e.Key()
	before := r.shown(key)
	if e.New == nil {
		delete(r.documents, key)
	} else {
		r.documents[key] = e.New
	}
	r.heed(key)
	for _, m := range slices.Clone(r.candidates[key]) {
		r.place(m)
	}
	r.show(key, before)
}

// shown returns what the registries have under a key: the workload that has registered as it, or the document. A document
// that this replica has published is none: what it says is known here, and is newer. It is called with events held.
func (r *Registrar) shown(key config.Key) *config.Config {
	if m := r.holders[key]; m != nil {
		return m.entry
	}
	doc := r.documents[key]
	if reg, ok := r.registrationOf(doc); ok && r.owns(reg) {
		return nil
	}
	return doc
}

// show lets the registries have what counts under a key now, if it is not the same for them as what they had before. It is
// called with events held, after every change of a document or a workload.
func (r *Registrar) show(key config.Key, before *config.Config) {
	wake.Signal(r.changed)
	r.shared.touch(key)
	freed := r.count(key)
	if now := r.shown(key); !alike(before, now) {
		r.call(config.Event{Old: before, New: now})
	}
	r.admit(freed)
}

// admit lets workloads of an account register for which there was no place, those that have waited longest first. It is called with events held.
func (r *Registrar) admit(of account) {
	for len(r.crowded[of]) > 0 && len(r.accounts[of]) < r.limits.PerAccount {
		r.update(slices.MinFunc(slices.Collect(maps.Keys(r.crowded[of])), func(a, b *member) int {
			return cmp.Or(a.since.Compare(b.since), config.CompareKeys(a.key, b.key))
		}))
	}
}

// await takes in whether a workload waits for a place of its account. It is called with events held.
func (r *Registrar) await(m *member, waits bool) {
	of := m.accountOf()
	switch {
	case waits && r.crowded[of] == nil:
		r.crowded[of] = map[*member]bool{m: true}
	case waits:
		r.crowded[of][m] = true
	default:
		if delete(r.crowded[of], m); len(r.crowded[of]) == 0 {
			delete(r.crowded, of)
		}
	}
}

// count takes in which account has registered as a key, and returns the account that has a place more by that; the zero account for none.
// It is called with events held.
func (r *Registrar) count(key config.Key) (freed account) {
	of := account{namespace: key.Namespace}
	if m := r.holders[key]; m != nil {
		of.name = m.identity.account
	} else if reg, ok := r.registrationOf(r.documents[key]); ok && !r.owns(reg) {
		of.name = reg.account
	}
	was := r.accountOf[key]
	if was == of {
		return account{}
	}
	if delete(r.accounts[was], key); len(r.accounts[was]) == 0 {
		delete(r.accounts, was)
	}
	if delete(r.accountOf, key); of.name == "" {
		return was
	}
	if r.accounts[of] == nil {
		r.accounts[of] = make(map[config.Key]bool)
	}
	r.accounts[of][key], r.accountOf[key] = true, of
	return was
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
	m.leaving = stop(m.leaving)
	m.left, m.told, m.ended = time.Time{}, time.Time{}, false
	m.proxy = p
	m.connected[connection] = true
	r.claim(m)
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
	m.left = time.Now()
	r.shared.touch(m.key)
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
		m.leaving = nil
		if r.isPublished(m) {
			m.ended = true // it goes with its registration
			r.shared.touch(m.key)
			return
		}
		r.drop(m)
	})
	m.leaving = leaving
}

// drop forgets a workload, and lets another one have its place. It is called with events held.
func (r *Registrar) drop(m *member) {
	before := r.shown(m.key)
	r.forget(m)
	for _, other := range slices.Clone(r.candidates[m.key]) {
		r.place(other)
	}
	r.show(m.key, before)
}

// forget forgets a workload. It is called with events held, and show must follow.
func (r *Registrar) forget(m *member) {
	delete(r.members, m.identity)
	r.await(m, false)
	r.candidates[m.key] = slices.DeleteFunc(r.candidates[m.key], func(other *member) bool { return other == m })
	if len(r.candidates[m.key]) == 0 {
		delete(r.candidates, m.key)
	}
	m.leaving, m.health.waiting, m.health.forgetting = stop(m.leaving), stop(m.health.waiting), stop(m.health.forgetting)
	if m.entry != nil {
		m.entry = nil
		delete(r.holders, m.key)
		r.say(m, slog.LevelInfo, "a workload is removed", "name", m.key.String(), "group", m.group.Name)
	}
}

// update makes the WorkloadEntry of a workload anew. It is called with events held.
func (r *Registrar) update(m *member) {
	before := r.shown(m.key)
	r.place(m)
	r.show(m.key, before)
}

// place decides whether a workload is registered, and makes its WorkloadEntry. It is called with events held, and show must
// follow.
func (r *Registrar) place(m *member) {
	var made *config.Config
	precedes := r.precedes(m)
	if precedes {
		m.refused = ""
		r.await(m, false)
	} else {
		made = r.entryOf(m)
	}
	if made != nil && made.Annotations[service.AnnotationHealthChecks] == "" {
		m.health.unchecked = true
	}
	switch before := m.entry; {
	case made != nil && before == nil:
		r.holders[m.key] = m
		r.say(m, slog.LevelInfo, "a workload has registered", "name", m.key.String(), "group", m.group.Name, "node", m.proxy.Node)
	case made == nil && before != nil:
		delete(r.holders, m.key)
		if !precedes {
			r.say(m, slog.LevelInfo, "a workload is removed", "name", m.key.String(), "group", m.group.Name)
		}
	case made != nil && config.ContentVersion(before) == config.ContentVersion(made):
		made = before
	}
	if m.entry = made; made == nil && m.ended {
		r.forget(m) // it has no registration any more with which it could end
	}
}

// maxLines is how many lines of one message the workloads of a service account cause in a minute, and linesPerSecond bounds
// those of all.
const maxLines, linesPerSecond = 100, 50

// say logs what a workload causes, at most so often.
func (r *Registrar) say(m *member, level slog.Level, message string, args ...any) {
	r.repeats.Log(r.log, level, message+" "+m.group.Namespace+"/"+m.account, message, args...)
}

// precedes reports whether a document takes precedence over a workload: that of a person, and the registration of the same
// workload at another replica, to which its proxy has connected later. It is called with events held.
func (r *Registrar) precedes(m *member) bool {
	doc := r.documents[m.key]
	reg, isRegistration := r.registrationOf(doc)
	if doc == nil || isRegistration && r.owns(reg) {
		return false
	}
	return !isRegistration || m.is(reg) && !m.newer(reg)
}

// entryOf returns the WorkloadEntry of a workload; nil if it may not register.
func (r *Registrar) entryOf(m *member) *config.Config {
	group := r.Get(m.group)
	refused := r.refusal(m.proxy, group)
	of := r.accounts[m.accountOf()]
	crowded := refused == "" && r.limits.PerAccount > 0 && len(of) >= r.limits.PerAccount && !of[m.key]
	r.await(m, crowded)
	if crowded {
		refused = fmt.Sprintf("%d workloads of the service account %s have registered, as many as --max-workloads-per-account allows", len(of), m.identity.account)
	}
	if holder := r.holders[m.key]; refused == "" && holder != nil && holder != m {
		refused = "the node " + holder.proxy.Node + " of the service account " + holder.account + " has registered with this address"
	}
	if reg, ok := r.registrationOf(r.documents[m.key]); refused == "" && ok && !r.owns(reg) && !m.is(reg) {
		refused = "a node of the service account " + reg.account + " has registered with this address, at the replica " + reg.replica
	}
	if refused != "" && refused != m.refused {
		r.say(m, slog.LevelWarn, "a workload is not registered", "name", m.key.String(), "node", m.proxy.Node, "err", refused)
	}
	if m.refused = refused; refused != "" {
		return nil
	}
	return entry(m, group)
}

// Entries returns the WorkloadEntries that the registered workloads would be with other documents, in no order. Those that
// have registered at another replica are as they are now, unless their group would not have them.
func (r *Registrar) Entries(documents config.Reader) (out []*config.Config) {
	r.events.Lock()
	defer r.events.Unlock()
	for _, m := range r.holders {
		if group := documents.Get(m.group); r.refusal(m.proxy, group) == "" && documents.Get(m.key) == nil {
			out = append(out, entry(m, group))
		}
	}
	for key, doc := range r.documents {
		reg, ok := r.registrationOf(doc)
		if !ok || r.owns(reg) || r.holders[key] != nil || documents.Get(key) != nil {
			continue
		}
		if group := documents.Get(reg.groupKey(key.Namespace)); group != nil && accountProblem(group, reg.account) == "" {
			out = append(out, doc)
		}
	}
	return out
}

// WorkloadEntries returns what the registries have, of a namespace or "" for all: the documents, and after them the workloads
// that have registered here, each in the order of their keys. They must not be changed.
func (r *Registrar) WorkloadEntries(namespace string) []*config.Config {
	r.events.Lock()
	defer r.events.Unlock()
	var documents, registered []*config.Config
	for key := range r.documents {
		if doc := r.shown(key); doc != nil && r.holders[key] == nil && (namespace == "" || key.Namespace == namespace) {
			documents = append(documents, doc)
		}
	}
	for key, m := range r.holders {
		if namespace == "" || key.Namespace == namespace {
			registered = append(registered, m.entry)
		}
	}
	for _, list := range [][]*config.Config{documents, registered} {
		slices.SortFunc(list, func(a, b *config.Config) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		})
	}
	return append(documents, registered...)
}

// refusal returns why a proxy may not register in a group, which may be nil; "" if it may.
func (r *Registrar) refusal(p *proxy.Proxy, group *config.Config) string {
	if group == nil {
		return "there is no WorkloadGroup " + p.Namespace + "/" + p.AutoRegisterGroup
	}
	if !p.Authenticated {
		return "the proxy has not authenticated: it must connect to --tls-listen with a certificate or a token"
	}
	if address := p.IPs[0].Unmap(); !r.limits.AnyAddress && (address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified()) {
		return "nobody else reaches a workload at " + address.String() + ": its node must say another address (INSTANCE_IPS), unless --register-any-address is given, as on one machine"
	}
	return accountProblem(group, p.ServiceAccount)
}

// accountProblem returns why a service account may not register in a group; "" if it may.
func accountProblem(group *config.Config, account string) string {
	if want := group.Spec.(*networking.WorkloadGroup).GetTemplate().GetServiceAccount(); want != "" && want != account {
		return "the service account of the WorkloadGroup is " + want + ", and that of the proxy " + account
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
	for _, name := range bookkeeping {
		delete(annotations, name)
	}
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
