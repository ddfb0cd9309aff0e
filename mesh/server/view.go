package server

import (
	"cmp"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/repeats"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// view is the configuration of one proxy as its stream sees it: a downstream.View.
type view struct {
	server *Server
	stream uint64
	peer   string
	form   xds.Form
	since  time.Time
	// gone is closed when the client has gone; nil for never.
	gone <-chan struct{}
	// turn is that of the proxy to get its first configuration.
	turn *turn
	// unregister ends the registration of its workload, and gives back its place among those that are connected.
	unregister func()
	changed    chan struct{} // holds a value when Begin has something new

	mu    sync.Mutex
	proxy *proxy.Proxy
	gen   *generation
	// configuration is what it has of gen.
	configuration
	types    map[string]*viewType
	revision uint64
	nacks    map[string]uint64
	// pending is what the proxy has not answered yet: since when, and up to which revision.
	pending         time.Time
	pendingRevision uint64
	closed          bool // the stream has ended
	// report is what the agent says of itself.
	report xds.AgentReport
}

// viewType is the state of one type of a view.
type viewType struct {
	wildcard bool
	names    map[string]struct{} // of EDS none
	dirty    map[string]struct{}
	// changedAt is the revision of the last change that concerns the subscription, answered the one
	// up to which the client has answered.
	changedAt, answered uint64
	// rejected has the resources that the client NACKed and has not ACKed since, by name.
	rejected map[string]rejection
	// nack is the reason of a NACK of a response without a resource, "" once the client ACKed one since.
	nack string
}

// rejection is a NACK of a resource.
type rejection struct {
	version string
	reason  string
}

func (v *view) typeOf(typeURL string) *viewType {
	t := v.types[typeURL]
	if t == nil {
		t = &viewType{names: make(map[string]struct{}), dirty: make(map[string]struct{})}
		v.types[typeURL] = t
	}
	return t
}

// concerns reports whether the client subscribes to a name.
func (t *viewType) concerns(name string) bool {
	_, ok := t.names[name]
	return t.wildcard || ok
}

// install makes a generation the one that is served. request says what changed, nil for a proxy that
// has just connected. It has no effect and returns false if the proxy went while it waited.
func (v *view) install(gen *generation, request *push.Request, who *proxy.Proxy) bool {
	now, ok := gen.of(who, v.gone)
	if !ok {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gen != nil && gen.number < v.gen.number {
		return true
	}
	before := v.tables
	v.proxy, v.gen, v.configuration = who, gen, now
	v.revision++
	any := false
	for half, now := range now.tables {
		for typeURL, t := range now {
			if old := before[half][typeURL]; old != t && v.types[typeURL] != nil {
				for _, name := range t.since(old) {
					any = v.touch(typeURL, name) || any
				}
			}
		}
	}
	if request != nil {
		any = v.touchEndpoints(request) || any
		any = v.touchSecrets(request) || any
	}
	v.wakeIf(any, request)
	return true
}

// endpoints records that endpoints of services changed, and nothing else.
func (v *view) endpoints(request *push.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.revision++
	v.wakeIf(v.touchEndpoints(request), request)
}

// touchEndpoints marks the endpoints of the services that a request may concern. A proxy subscribes to
// those of its clusters, so that the view need not remember their names.
func (v *view) touchEndpoints(request *push.Request) (any bool) {
	if v.types[xds.EndpointType] == nil {
		return false
	}
	clusters := v.tables[0][xds.ClusterType] // those for inbound connections have no EDS
	if !request.Full {
		for key := range request.Services {
			for _, name := range clusters.clustersOf(key.Hostname) {
				any = v.touch(xds.EndpointType, name) || any
			}
		}
		return any
	}
	all, hosts := affectedHosts(request)
	if !all {
		for host := range hosts {
			for _, name := range clusters.clustersOf(host) {
				any = v.touch(xds.EndpointType, name) || any
			}
		}
		return any
	}
	for name, r := range clusters.Set {
		if r.EDSName != "" {
			any = v.touch(xds.EndpointType, name) || any
		}
	}
	return any
}

// touchSecrets marks the Secrets that a request may concern.
func (v *view) touchSecrets(request *push.Request) (any bool) {
	t := v.types[xds.SecretType]
	if t == nil {
		return false
	}
	if secretsMayChange(request) {
		for name := range t.names {
			any = v.touch(xds.SecretType, name) || any
		}
	}
	return any
}

// secretsMayChange reports whether a request concerns Secrets, or which of them a proxy may have.
func secretsMayChange(r *push.Request) bool {
	if r.Everything() {
		return true
	}
	for key := range r.Configs {
		switch key.Kind {
		case config.Secret, config.Gateway, config.DestinationRule, config.Ingress,
			config.KubernetesGateway, config.GatewayClass, config.ReferenceGrant, config.ConfigMap:
			return true
		}
	}
	return false
}

// touch marks a name as changed, and reports whether the client subscribes to it.
func (v *view) touch(typeURL, name string) bool {
	t := v.types[typeURL]
	switch {
	case t == nil:
		return false
	case typeURL != xds.EndpointType && !t.concerns(name):
		return false
	}
	t.dirty[name] = struct{}{}
	t.changedAt = v.revision
	return true
}

// wakeIf wakes the stream if something changed that concerns it.
func (v *view) wakeIf(any bool, request *push.Request) {
	if !any {
		return
	}
	if request != nil && v.pending.IsZero() && !v.closed {
		v.pending = request.Start
		v.server.behindNow.Add(1)
	}
	v.pendingRevision = v.revision
	wake.Signal(v.changed)
}

// Changed, Begin and the others below are those of downstream.View.
func (v *view) Changed() <-chan struct{} { return v.changed }

func (v *view) Begin() (session.View, []xds.Change) {
	v.mu.Lock()
	var changes []xds.Change
	for typeURL, t := range v.types {
		if len(t.dirty) == 0 {
			continue
		}
		names := make([]string, 0, len(t.dirty))
		for name := range t.dirty {
			names = append(names, name)
		}
		xds.ResetNames(&t.dirty)
		changes = append(changes, xds.Change{Type: typeURL, Names: names})
	}
	return state{v}, changes
}

func (v *view) End() { v.mu.Unlock() }

func (v *view) HadWildcard(string) bool { return false }

func (v *view) Subscribe(change xds.SubscriptionChange) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.typeOf(change.Type)
	t.wildcard = change.Wildcard
	t.changedAt = max(t.changedAt, 1)
	if change.Type == xds.EndpointType {
		return // see touchEndpoints
	}
	for _, name := range change.Subscribe {
		t.names[name] = struct{}{}
	}
	if change.Type == xds.SecretType {
		v.reportMissing(change.Subscribe)
	}
	for _, name := range change.Unsubscribe {
		delete(t.names, name)
		delete(t.dirty, name)
	}
}

// reportMissing logs which of the secrets that the proxy asks for it does not get, because Envoy waits
// for them without a word.
func (v *view) reportMissing(names []string) {
	for _, name := range names {
		if (state{v}).secret(name) != nil {
			continue
		}
		reason := "there is no such Secret in the proxy's namespace, or no Gateway or DestinationRule of the proxy names it"
		if !v.proxy.Authenticated {
			reason = "the proxy has not authenticated: it must connect to --tls-listen, and prove its identity with a certificate or a token"
		}
		v.server.cfg.Metrics.missing.Inc()
		v.server.missing.Log(v.server.cfg.Log, slog.LevelWarn, repeats.Peer(v.peer), "proxy does not get a secret", "node", v.proxy.Node, "name", name, "reason", reason)
	}
}

func (v *view) Answer(a session.Answer) {
	v.turn.answered()
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.typeOf(a.Type)
	t.answer(a)
	if a.NACK {
		v.nacks[a.Type]++
		v.server.cfg.Metrics.rejected(a.Type)
	}
}

// answer records what the client accepts and rejects. What it rejected stays so when it ACKs something
// else.
func (t *viewType) answer(a session.Answer) {
	for _, r := range a.Acked {
		delete(t.rejected, r.Name)
	}
	for _, name := range a.Removed {
		delete(t.rejected, name)
	}
	t.nack = ""
	if !a.NACK {
		return
	}
	resources := a.Suspects
	if a.Nacked != nil {
		resources = append(slices.Clone(resources), a.Nacked)
	}
	if len(resources) == 0 {
		t.nack = a.Error
	}
	for _, r := range resources {
		if t.rejected == nil {
			t.rejected = make(map[string]rejection)
		}
		t.rejected[r.Name] = rejection{r.Version, a.Error}
	}
}

// reasons returns why the client rejects what it is served, one reason a line, "" if it rejects nothing.
// A resource that has changed since is not rejected: the client has not answered it yet.
func (v *view) reasons(typeURL string, t *viewType) string {
	var reasons []string
	if t.nack != "" {
		reasons = append(reasons, t.nack)
	}
	for _, name := range slices.Sorted(maps.Keys(t.rejected)) {
		r := t.rejected[name]
		item := state{v}.Lookup(typeURL, name)
		if item.Current != nil && item.Current.Version == r.version && !slices.Contains(reasons, r.reason) {
			reasons = append(reasons, r.reason)
		}
	}
	for i, reason := range reasons {
		reasons[i] = strings.Join(strings.Fields(reason), " ")
	}
	return strings.Join(reasons, "\n")
}

// Sent implements downstream.View: what is sent is counted elsewhere.
func (v *view) Sent(*session.Response, time.Time) {}

func (v *view) Progress(p session.Progress) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.typeOf(p.Type)
	t.answered = max(t.answered, p.Revision)
	if p.Type == xds.ListenerType && t.changedAt > 0 && t.answered >= t.changedAt {
		v.turn.end() // it has all but its routes, if it has any
	}
	if v.pending.IsZero() {
		return
	}
	for _, t := range v.types {
		if t.changedAt <= v.pendingRevision && t.answered < t.changedAt {
			return
		}
	}
	v.server.cfg.Metrics.converged(time.Since(v.pending))
	v.caughtUp()
}

// caughtUp records that the proxy is not behind any more; the caller holds the lock.
func (v *view) caughtUp() {
	if !v.pending.IsZero() {
		v.pending = time.Time{}
		v.server.behindNow.Add(-1)
	}
}

func (v *view) Close(downstream.End) { v.server.detach(v) }

// state is the view between Begin and End: a session.View.
type state struct{ *view }

func (s state) Revision() uint64 { return s.revision }

// Wildcard returns Complete: nobody is served before everything is known.
func (s state) Wildcard(string) xds.Knowledge { return xds.Complete }

func (s state) Lookup(typeURL, name string) xds.Item {
	var r *xds.Resource
	switch typeURL {
	case xds.EndpointType:
		r = s.gen.assignment(s.proxy, s.clusters, name)
	case xds.SecretType:
		// A Secret that the proxy does not get is unknown, and not absent: a proxy that has it keeps it.
		return xds.Item{Current: s.secret(name), Status: xds.Acked}
	default:
		for _, half := range s.tables {
			if t := half[typeURL]; t != nil && t.Set[name] != nil {
				r = t.Set[name]
			}
		}
	}
	if r == nil {
		return xds.Item{NotFound: true}
	}
	return xds.Item{Current: r, Status: xds.Acked}
}

// secret returns a Secret of the configuration if the proxy may have it; otherwise nil (mesh.md M9).
func (s state) secret(name string) *xds.Resource {
	if !s.proxy.Authenticated {
		return nil
	}
	return s.gen.Secret(proxy.NewView(s.proxy), name)
}

func (s state) All(typeURL string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		for _, half := range s.tables {
			t := half[typeURL]
			if t == nil {
				continue
			}
			for _, r := range t.Set {
				if !yield(xds.Item{Current: r, Status: xds.Acked}) {
					return
				}
			}
		}
	}
}

func (s state) Count(typeURL string) (n int) {
	for _, half := range s.tables {
		if t := half[typeURL]; t != nil {
			n += len(t.Set)
		}
	}
	return n
}

func (s state) Collection(string, string) iter.Seq[xds.Item] { return func(func(xds.Item) bool) {} }
func (s state) MaybeHeld(string) []string                    { return nil }
func (s state) Connected() time.Time                         { return s.server.started }
func (s state) HadTTL(string) bool                           { return false }
func (s state) Nacks(typeURL string) uint64                  { return s.nacks[typeURL] }

// ProxyStatus describes a connected proxy.
type ProxyStatus struct {
	Stream    uint64       `json:"stream"`
	Node      string       `json:"node"`
	Type      proxy.Type   `json:"type"`
	Namespace string       `json:"namespace"`
	Peer      string       `json:"peer,omitempty"`
	Protocol  string       `json:"protocol"`
	Since     time.Time    `json:"since"`
	Types     []TypeStatus `json:"types"`
	// HeldBack has what the agent of the proxy holds back, by type.
	HeldBack []xds.HeldBack `json:"held_back,omitempty"`
	// Frozen is what an operator has frozen at the agent of the proxy: of these types it has not what Types says. nil for nothing.
	Frozen *xds.Frozen `json:"frozen,omitempty"`
	// Workload is the workload that the proxy registers; nil for none.
	Workload *WorkloadStatus `json:"workload,omitempty"`
}

// TypeStatus describes one type of a connected proxy. The states are those of Istio's proxy-status:
// SYNCED, STALE, NACKED with the reasons, one a line, or NOT SENT for secrets of which the proxy does
// not get some.
type TypeStatus struct {
	Type   string `json:"type"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Patches are the patches of EnvoyFilters that are left out of resources, with the reasons.
	Patches []string `json:"patches,omitempty"`
}

func (v *view) status() ProxyStatus {
	v.mu.Lock()
	who := v.proxy
	s := ProxyStatus{
		Stream: v.stream, Node: v.proxy.Node, Type: v.proxy.Type, Namespace: v.proxy.Namespace,
		Peer: v.peer, Protocol: v.form.String(), Since: v.since, Types: v.typeStatus(),
		HeldBack: v.report.HeldBack, Frozen: v.report.Frozen,
	}
	v.mu.Unlock()
	if v.server.cfg.Registrar != nil { // a change of a registration waits for views
		s.Workload = workloadOf(v.server.cfg.Registrar.Workload(who))
	}
	return s
}

// typeStatus describes the types; the caller holds the lock.
func (v *view) typeStatus() (out []TypeStatus) {
	for typeURL, t := range v.types {
		one := TypeStatus{Type: xds.Short(typeURL), State: "SYNCED"}
		reasons := v.reasons(typeURL, t)
		missing := v.missing(typeURL, t)
		switch {
		case len(missing) > 0:
			one.State, one.Reason = "NOT SENT", "there is no Secret, or none for this proxy: "+strings.Join(missing, ", ")
		case reasons != "":
			one.State, one.Reason = "NACKED", reasons
		case t.answered < t.changedAt:
			one.State = "STALE"
		}
		for _, half := range v.tables {
			if t := half[typeURL]; t != nil {
				one.Patches = append(one.Patches, t.failures...)
			}
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b TypeStatus) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// missing returns the secrets to which the client subscribes and which it does not get.
func (v *view) missing(typeURL string, t *viewType) (names []string) {
	if typeURL != xds.SecretType {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(t.names)) {
		if (state{v}).secret(name) == nil {
			names = append(names, name)
		}
	}
	return names
}

// instancesOf returns the ports of services that a proxy stands before.
func instancesOf(d *service.Discovery, p *proxy.Proxy) []proxy.Target {
	query := service.Proxy{Namespace: p.Namespace, Labels: p.Labels, Cluster: p.Cluster}
	for _, ip := range p.IPs {
		query.Addresses = append(query.Addresses, ip.String())
	}
	var targets []proxy.Target
	for _, i := range d.ProxyInstances(query) {
		targets = append(targets, proxy.Target{Service: i.Service, Port: i.Port, TargetPort: i.Endpoint.Port})
	}
	return targets
}
