package server

import (
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// table has the resources of one type that a class of proxies gets. It does not change.
type table struct {
	generate.Set
	// failures says which patches of EnvoyFilters are left out of the resources, in order.
	failures []string

	indexed sync.Once
	byHost  map[service.Hostname][]string

	mu sync.Mutex
	// before is the table with which this one was compared last, and differs what since returned. Most proxies of a class come from one table.
	before  weak.Pointer[table]
	differs []string
}

// since returns the names of which two tables have different resources, or only one has any. old may be nil.
func (t *table) since(old *table) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old != nil && t.before == weak.Make(old) {
		return t.differs
	}
	var names []string
	for name, r := range t.Set {
		if old == nil || !sameContent(old.Set[name], r) {
			names = append(names, name)
		}
	}
	if old == nil {
		return names
	}
	for name := range old.Set {
		if t.Set[name] == nil {
			names = append(names, name)
		}
	}
	t.before, t.differs = weak.Make(old), names
	return names
}

// sameContent reports whether two resources of a name and type are equal, of which the first may be nil. Nearly always they are one object then.
func sameContent(a, b *xds.Resource) bool { return a == b || a != nil && a.Version == b.Version }

// clustersOf returns the names of the clusters of a host whose endpoints are sent apart (EDS), of a
// table of clusters.
func (t *table) clustersOf(host service.Hostname) []string {
	t.indexed.Do(func() {
		t.byHost = make(map[service.Hostname][]string)
		for name, r := range t.Set {
			if _, _, host, ok := generate.ParseClusterName(name); ok && r.EDSName != "" {
				t.byHost[host] = append(t.byHost[host], name)
			}
		}
	})
	return t.byHost[host]
}

// resources are the tables of a class, by type URL.
type resources map[string]*table

// class is what a class of proxies gets of a part of the configuration.
type class struct {
	resources
	// read are the properties in which the proxies of the class agree.
	read proxy.Properties
	// assigned are, of a class of clusters, the endpoints of these.
	assigned assigned
}

// part has the resources of one part of the configuration by class. Generation holds no lock.
type part struct {
	types    []string
	classes  proxy.Shared[*class]
	generate func(*proxy.View) *generate.Resources
	looked   func(generated time.Duration)
	failed   func([]generate.Failure)
	slots    proxy.Slots

	mu sync.Mutex
	// keeps reports that the resources of a proxy are those of the generation before; nil for never.
	keeps  func(*proxy.Proxy) bool
	before *part // of the generation before; nil for none
	// snapshot is that of before.
	snapshot *push.Snapshot
	// latest has what was generated last, for any class: classes have most resources in common.
	latest resources
}

// follow makes a part the one after that of a generation, of which it keeps what keeps says.
func (p *part) follow(before *part, of *push.Snapshot, keeps func(*proxy.Proxy) bool) {
	before.mu.Lock()
	before.before, before.snapshot, before.keeps = nil, nil, nil // it may be in use for long
	before.mu.Unlock()
	p.before, p.snapshot, p.keeps = before, of, keeps
}

// past returns the part of the generation before and what is kept of it. Both are nil for a generation after which others came.
func (p *part) past() (before *part, keeps func(*proxy.Proxy) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.before, p.keeps
}

// of returns what the class of a proxy gets. Resources that are as they were in the generation before, or as
// another class has them, are the same objects, and so are whole tables. ok is false if gone was closed while the proxy waited.
func (p *part) of(who *proxy.Proxy, gone <-chan struct{}) (c *class, ok bool) {
	if c, ok = p.classes.Find(who); ok {
		p.looked(0)
		return c, true
	}
	before, keeps := p.past()
	if keeps != nil && keeps(who) {
		adopt := func(old *class) *class { return &class{resources: old.resources, read: old.read} }
		if c, ok = p.classes.Adopt(who, &before.classes, adopt); ok {
			p.looked(0)
			return c, true
		}
	}
	var generated time.Duration
	c, ok = p.classes.Get(who, p.slots, gone, func(v *proxy.View) *class {
		began := time.Now()
		made := p.generate(v)
		generated = time.Since(began)
		if len(made.Failures) > 0 {
			p.failed(made.Failures)
		}
		return &class{resources: p.share(who, before, made), read: v.Read()}
	})
	if ok {
		p.looked(generated)
	}
	return c, ok
}

// share returns the tables of what was made for a proxy.
func (p *part) share(who *proxy.Proxy, before *part, made *generate.Resources) resources {
	var old resources
	if before != nil {
		if c, ok := before.classes.Find(who); ok {
			old = c.resources
		}
	}
	p.mu.Lock()
	latest := p.latest
	p.mu.Unlock()
	out := make(resources, len(p.types))
	for _, typeURL := range p.types {
		out[typeURL] = share(&table{Set: made.Of(typeURL), failures: failuresOf(made.Failures, typeURL)}, old[typeURL], latest[typeURL])
	}
	p.mu.Lock()
	p.latest = out
	p.mu.Unlock()
	return out
}

// share returns a table, or one of the others if it is equal. A resource that is equal to one of the
// others is replaced by the first such. The others may be nil.
func share(made *table, others ...*table) *table {
	set := made.Set
	shared := make(map[string]bool, len(set))
	for _, other := range others {
		if other == nil {
			continue
		}
		equal := len(set) == len(other.Set) && slices.Equal(made.failures, other.failures)
		for name, r := range set {
			if same := other.Set[name]; same != nil && same.Version == r.Version && !shared[name] {
				set[name], shared[name] = same, true
			}
			equal = equal && set[name] == other.Set[name]
		}
		if equal {
			return other
		}
	}
	return made
}

// retain forgets the classes that none of the proxies is of, here and in the generation before, and its scopes but those of namespaces.
func (p *part) retain(proxies []*proxy.Proxy, namespaces map[string]bool) {
	p.classes.Retain(proxies)
	p.mu.Lock()
	before, snapshot := p.before, p.snapshot
	p.mu.Unlock()
	if before != nil {
		snapshot.RetainScopes(namespaces)
		before.classes.Retain(proxies)
	}
}
