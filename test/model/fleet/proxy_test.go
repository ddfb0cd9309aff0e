package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// kinds are the types of a proxy, in push order.
var kinds = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType}

// resource is one that a proxy has.
type resource struct {
	version string
	content uint64 // the hash of its bytes
}

// proxy is a sidecar or a gateway: it subscribes to all clusters and listeners, to the endpoints of its clusters and to the
// routes of its listeners, and keeps what it has when it loses its stream.
type proxy struct {
	w    *world
	name string
	node *corev3.Node
	form xds.Form

	has      map[string]map[string]resource    // by type and name
	versions map[string]string                 // SotW: accepted last, by type
	names    map[string][]string               // that it subscribes to, by type; nil for the wildcard
	refers   map[string][]references.Reference // what each cluster and listener refers to, by type and name

	plane   *plane // nil while it is away
	view    downstream.View
	machine *session.Session
	slow    bool // it does not answer for now
	pending []*session.Request
	nonces  map[string]string
	problem string
}

func newProxy(w *world, name string, form xds.Form, meta map[string]any) *proxy {
	fields, err := structpb.NewStruct(meta)
	if err != nil {
		panic(err)
	}
	c := &proxy{w: w, name: name, form: form, node: &corev3.Node{Id: name, UserAgentName: xds.EnvoyUserAgent, Metadata: fields}, has: make(map[string]map[string]resource), versions: make(map[string]string), names: make(map[string][]string), refers: make(map[string][]references.Reference)}
	for _, kind := range kinds {
		c.has[kind] = make(map[string]resource)
	}
	return c
}

// connect opens a stream to a control plane, and says what the proxy has.
func (c *proxy) connect(p *plane) {
	c.w.streams++
	view, err := p.server.Attach(downstream.Client{Stream: c.w.streams, Node: c.node, Form: c.form})
	if err != nil {
		panic(err)
	}
	c.plane, c.view, c.pending, c.nonces = p, view, nil, make(map[string]string)
	c.machine = session.New(session.Config{Form: c.form, NoncePrefix: strconv.FormatUint(c.w.streams, 10) + ".", KeepWildcard: true, TTL: true, HadWildcard: view.HadWildcard})
	for _, kind := range kinds {
		names := c.names[kind]
		wildcard := kind == xds.ClusterType || kind == xds.ListenerType
		if !wildcard && len(names) == 0 {
			continue
		}
		req := &session.Request{Type: kind}
		if c.form == xds.Delta {
			req.Subscribe, req.Initial = names, make(map[string]string)
			for name, r := range c.has[kind] {
				if wildcard || slices.Contains(names, name) {
					req.Initial[name] = r.version
				}
			}
		} else {
			req.Names, req.Version = names, c.versions[kind]
		}
		c.pending = append(c.pending, req)
	}
}

func (c *proxy) disconnect() {
	if c.plane == nil {
		return
	}
	c.view.Close(downstream.End{Unanswered: c.machine.Unanswered()})
	c.plane, c.view, c.machine, c.pending = nil, nil, nil, nil
}

// pump sends what the proxy has to say and takes in what the control plane does; false if there was nothing.
func (c *proxy) pump() (busy bool) {
	if c.plane == nil {
		return false
	}
	if !c.slow {
		for _, req := range c.pending {
			busy = true
			c.send(req)
		}
		c.pending = nil
	}
	for {
		resp := c.next()
		if resp == nil {
			return busy
		}
		busy = true
		c.take(resp)
	}
}

// send lets the control plane take in a request, as a stream does.
func (c *proxy) send(req *session.Request) {
	eff := c.machine.Request(req)
	if eff.Subscription != nil {
		c.view.Subscribe(*eff.Subscription)
	}
	if eff.Answer != nil {
		c.view.Answer(*eff.Answer)
		if eff.Culprit != nil {
			c.view.Answer(*eff.Culprit)
		}
		c.progress()
	}
}

func (c *proxy) progress() {
	for _, p := range c.machine.Progress() {
		c.view.Progress(p)
	}
}

// next returns the next response, as a stream does.
func (c *proxy) next() *session.Response {
	for {
		v, changed := c.view.Begin()
		for _, change := range changed {
			c.machine.Changed(change.Type, change.Names, change.All)
		}
		resp, _ := c.machine.Next(v, time.Now())
		c.view.End()
		changes := c.machine.SubscriptionChanges()
		for _, change := range changes {
			c.view.Subscribe(change)
		}
		for _, claim := range c.machine.Claims() {
			c.view.Answer(claim)
		}
		if resp != nil || len(changes) == 0 {
			c.progress()
			if resp != nil {
				c.view.Sent(resp, time.Now())
			}
			return resp
		}
	}
}

// take takes in a response and answers it.
func (c *proxy) take(resp *session.Response) {
	wildcard := resp.Type == xds.ClusterType || resp.Type == xds.ListenerType
	now := make(map[string]resource, len(resp.Resources))
	repeated := 0
	for _, r := range resp.Resources {
		one := resource{r.Version, xxhash.Sum64(r.Body.GetValue())}
		if c.has[resp.Type][r.Name] == one {
			repeated++
		}
		if wildcard || slices.Contains(c.names[resp.Type], r.Name) { // Envoy ignores what it does not want any more
			now[r.Name] = one
		}
	}
	_, answered := c.nonces[resp.Type]
	switch {
	case c.form == xds.Delta && wildcard && repeated > 0:
		c.fail("%d of %d resources of %s are sent again", repeated, len(now), xds.Short(resp.Type))
	case c.form == xds.SotW && wildcard && answered && maps.Equal(now, c.has[resp.Type]) && len(now) > 0: // the first request of a stream is always answered
		c.fail("all %d resources of %s are sent again", len(now), xds.Short(resp.Type))
	}
	if c.form == xds.SotW && wildcard {
		c.has[resp.Type] = now
	}
	maps.Copy(c.has[resp.Type], now)
	for _, name := range resp.Removed {
		delete(c.has[resp.Type], name)
	}
	c.versions[resp.Type] = resp.Version
	ack := &session.Request{Type: resp.Type, Nonce: resp.Nonce, Version: resp.Version, Names: c.names[resp.Type]}
	if c.form == xds.Delta {
		ack.Version, ack.Names = "", nil
	}
	c.nonces[resp.Type] = resp.Nonce
	c.pending = append(c.pending, ack)
	if wildcard {
		c.follow(resp.Type, resp.Resources)
	}
}

func (c *proxy) fail(format string, args ...any) {
	if c.problem == "" {
		c.problem = c.name + ": " + fmt.Sprintf(format, args...)
	}
}

// known has the references of resources by their content: all histories have the same few.
var known sync.Map

func referencesOf(r *xds.Resource) []references.Reference {
	content := string(r.Body.GetValue())
	if found, ok := known.Load(content); ok {
		return found.([]references.Reference)
	}
	found := references.Of(r.Body)
	known.Store(content, found)
	return found
}

// follow subscribes to what the clusters or listeners of the proxy refer to.
func (c *proxy) follow(kind string, list []*xds.Resource) {
	target := map[string]string{xds.ClusterType: xds.EndpointType, xds.ListenerType: xds.RouteType}[kind]
	for _, r := range list {
		c.refers[kind+r.Name] = referencesOf(r)
	}
	wanted := make(map[string]bool)
	for name := range c.has[kind] {
		for _, ref := range c.refers[kind+name] {
			if ref.Type == target {
				wanted[ref.Name] = true
			}
		}
	}
	before := c.names[target]
	after := slices.Sorted(maps.Keys(wanted))
	if slices.Equal(before, after) {
		return
	}
	c.names[target] = after
	req := &session.Request{Type: target, Nonce: c.nonces[target]}
	if c.form == xds.SotW {
		req.Names, req.Version = after, c.versions[target]
	} else {
		for _, name := range after {
			if !slices.Contains(before, name) {
				req.Subscribe = append(req.Subscribe, name)
			}
		}
		for _, name := range before {
			if !wanted[name] {
				req.Unsubscribe = append(req.Unsubscribe, name)
			}
		}
		req.Nonce = ""
	}
	for name := range c.has[target] {
		if !wanted[name] {
			delete(c.has[target], name) // as Envoy does with the cluster or listener
		}
	}
	c.pending = append(c.pending, req)
}

// differs returns how what two proxies have differs; "" if it does not.
func (c *proxy) differs(other *proxy) string {
	var b strings.Builder
	for _, kind := range kinds {
		for _, name := range slices.Sorted(maps.Keys(c.has[kind])) {
			if got, want := c.has[kind][name], other.has[kind][name]; got != want {
				fmt.Fprintf(&b, "%s %s: %+v, and a new one has %+v\n", xds.Short(kind), name, got, want)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(other.has[kind])) {
			if _, has := c.has[kind][name]; !has {
				fmt.Fprintf(&b, "%s %s is missing\n", xds.Short(kind), name)
			}
		}
	}
	return b.String()
}
