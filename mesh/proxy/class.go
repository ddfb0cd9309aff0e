package proxy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// property is a property of a proxy that generation may read: what it is, and of a selector which.
type property struct {
	what     byte
	selector string
}

const (
	readType      = 't'
	readNamespace = 'n'
	readCapture   = 'c'
	readDNSDomain = 'd'
	readCluster   = 'k'
	readNetwork   = 'w'
	readLocality  = 'l'
	readFamilies  = 'f'
	readIPs       = 'i'
	readHTTPProxy = 'h'
	readStatus    = 'r'
	readSelects   = 's'
	readLabel     = 'b'
	readAgent     = 'a'
	readMeshTLS   = 'm'
	readTargets   = 'g'
	readPrivilege = 'u'
	readHosts     = 'v'
	readDNS       = 'D'
	readNode      = 'N'
	readProxyless = 'p'
	readView      = 'W'
	readVersion   = 'V'
	readMetadata  = 'M'
	readOwnConfig = 'P'
	readService   = 'S'
	readOTel      = 'o'
	readMeshID    = 'I'

	readTagFormats = 'F'
)

// View is a proxy as generation sees it. It records each property that is read, because proxies
// that agree in these share the result (mesh.md M5).
type View struct {
	proxy *Proxy
	read  []reading
	seen  Properties
	// noted is called with each property that is read for the first time; nil for nobody.
	noted func(reading)
}

// Properties are properties of proxies that generation has read, whatever their values are.
type Properties map[property]struct{}

// reading is a property that was read, and its value.
type reading struct {
	property
	value string
	of    func(*Proxy) string // computes the value for another proxy
}

// NewView returns a view of a proxy of which nothing was read.
func NewView(p *Proxy) *View { return &View{proxy: p, seen: make(Properties)} }

// Read returns the properties that were read. They must not be changed.
func (v *View) Read() Properties { return v.seen }

// ReadOnly reports whether nothing was read but these properties: what was made of the view then is the same for all proxies that
// agree in them.
func (v *View) ReadOnly(properties Properties) bool {
	for prop := range v.seen {
		if _, ok := properties[prop]; !ok {
			return false
		}
	}
	return true
}

func (v *View) note(prop property, of func(*Proxy) string) {
	if _, ok := v.seen[prop]; ok {
		return
	}
	v.seen[prop] = struct{}{}
	r := reading{prop, of(v.proxy), of}
	v.read = append(v.read, r)
	if v.noted != nil {
		v.noted(r)
	}
}

// Type returns the type of the proxy.
func (v *View) Type() Type {
	v.note(property{what: readType}, func(p *Proxy) string { return string(p.Type) })
	return v.proxy.Type
}

// Namespace returns the namespace whose configuration the proxy uses.
func (v *View) Namespace() string {
	v.note(property{what: readNamespace}, func(p *Proxy) string { return p.Namespace })
	return v.proxy.Namespace
}

// Capture returns how the proxy gets its connections.
func (v *View) Capture() Capture {
	v.note(property{what: readCapture}, func(p *Proxy) string { return string(p.Capture) })
	return v.proxy.Capture
}

// DNSDomain returns the domain in which the workload's short names are.
func (v *View) DNSDomain() string {
	v.note(property{what: readDNSDomain}, func(p *Proxy) string { return p.DNSDomain })
	return v.proxy.DNSDomain
}

// Cluster returns the id of the cluster in which the proxy runs, Network that of its network; ""
// for none.
func (v *View) Cluster() string {
	v.note(property{what: readCluster}, func(p *Proxy) string { return p.Cluster })
	return v.proxy.Cluster
}

// Network returns the id of the network in which the proxy runs; "" for none.
func (v *View) Network() string {
	v.note(property{what: readNetwork}, func(p *Proxy) string { return p.Network })
	return v.proxy.Network
}

// NetworkView returns the networks whose endpoints the proxy wants, with commas between them; "" for all.
func (v *View) NetworkView() string {
	v.note(property{what: readView}, func(p *Proxy) string { return p.NetworkView })
	return v.proxy.NetworkView
}

// Locality returns where the proxy runs; nil for unknown.
func (v *View) Locality() *corev3.Locality {
	v.note(property{what: readLocality}, func(p *Proxy) string {
		l := p.Locality
		return l.GetRegion() + "/" + l.GetZone() + "/" + l.GetSubZone()
	})
	return v.proxy.Locality
}

// Families returns the address families of the proxy.
func (v *View) Families() Families {
	v.note(property{what: readFamilies}, func(p *Proxy) string { return strconv.Itoa(int(p.families())) })
	return v.proxy.families()
}

// IPs returns the addresses of the proxy: after this call hardly any other proxy is of its class.
func (v *View) IPs() []netip.Addr {
	v.note(property{what: readIPs}, func(p *Proxy) string {
		var b strings.Builder
		for _, ip := range p.IPs {
			b.WriteString(ip.String() + ",")
		}
		return b.String()
	})
	return v.proxy.IPs
}

// HTTPProxyPort returns the port of the HTTP proxy; 0 for the mesh's.
func (v *View) HTTPProxyPort() uint32 {
	v.note(property{what: readHTTPProxy}, func(p *Proxy) string { return strconv.Itoa(int(p.HTTPProxyPort)) })
	return v.proxy.HTTPProxyPort
}

// HasPort reports whether the bootstrap of the proxy has a listener for readiness or metrics at a port.
func (v *View) HasPort(port uint32) bool {
	v.note(property{what: readStatus}, func(p *Proxy) string { return fmt.Sprint(p.StatusPort, p.StatsPort) })
	return port == v.proxy.StatusPort || port == v.proxy.StatsPort
}

// PilotAgent reports whether Istio's agent made the bootstrap of the proxy.
func (v *View) PilotAgent() bool {
	v.note(property{what: readAgent}, func(p *Proxy) string { return strconv.FormatBool(p.PilotAgent) })
	return v.proxy.PilotAgent
}

// Unprivileged reports whether the proxy cannot listen on ports below 1024.
func (v *View) Unprivileged() bool {
	v.note(property{what: readPrivilege}, func(p *Proxy) string { return strconv.FormatBool(p.Unprivileged) })
	return v.proxy.Unprivileged
}

// VirtualHosts reports whether the proxy gets virtual hosts one by one.
func (v *View) VirtualHosts() bool {
	v.note(property{what: readHosts}, func(p *Proxy) string { return strconv.FormatBool(p.VirtualHosts) })
	return v.proxy.VirtualHosts
}

// CapturesDNS reports whether a DNS proxy gives the workload the automatic addresses of services.
func (v *View) CapturesDNS() bool {
	v.note(property{what: readDNS}, func(p *Proxy) string { return strconv.FormatBool(p.DNSCapture) })
	return v.proxy.DNSCapture
}

// Proxyless reports whether the client is a program with gRPC, and no Envoy.
func (v *View) Proxyless() bool {
	v.note(property{what: readProxyless}, func(p *Proxy) string { return strconv.FormatBool(p.Proxyless) })
	return v.proxy.Proxyless
}

// NodeName returns the Kubernetes node on which the proxy runs; "" for none.
func (v *View) NodeName() string {
	v.note(property{what: readNode}, func(p *Proxy) string { return p.NodeName })
	return v.proxy.NodeName
}

// Version returns the version of Istio's proxy; "" for none.
func (v *View) Version() string {
	v.note(property{what: readVersion}, func(p *Proxy) string { return p.Version })
	return v.proxy.Version
}

// Metadata returns a text in the metadata of the proxy's Node; ok is false for none.
func (v *View) Metadata(key string) (text string, ok bool) {
	v.note(property{readMetadata, key}, func(p *Proxy) string {
		if text, ok := p.Metadata[key]; ok {
			return "=" + text
		}
		return ""
	})
	text, ok = v.proxy.Metadata[key]
	return text, ok
}

// MeshTLS reports whether the proxy has a certificate of the mesh: it carries the label that Istio
// gives such workloads, or Istio's agent runs it.
func (v *View) MeshTLS() bool {
	v.note(property{what: readMeshTLS}, func(p *Proxy) string { return strconv.FormatBool(p.meshTLS()) })
	return v.proxy.meshTLS()
}

// Targets returns the ports of services that the workload serves, in the order of the target ports.
func (v *View) Targets() []Target {
	v.note(property{what: readTargets}, func(p *Proxy) string {
		var b strings.Builder
		for _, t := range p.Targets {
			b.WriteString(t.Service.Namespace + "/" + string(t.Service.Hostname) + ":" + strconv.Itoa(int(t.Number)) + ">" + strconv.Itoa(int(t.TargetPort)) + ",")
		}
		return b.String()
	})
	return v.proxy.Targets
}

// SelectedBy reports whether a selector selects the labels of the proxy. An empty selector selects
// every proxy.
func (v *View) SelectedBy(selector map[string]string) bool {
	if len(selector) == 0 {
		return true
	}
	v.note(property{readSelects, canonical(selector)}, func(p *Proxy) string {
		return strconv.FormatBool(Selects(selector, p.Labels))
	})
	return Selects(selector, v.proxy.Labels)
}

// Label returns the value of a label of the proxy; "" if it does not have the label.
func (v *View) Label(key string) string {
	v.note(property{readLabel, key}, func(p *Proxy) string { return p.Labels[key] })
	return v.proxy.Labels[key]
}

// Classes remembers results of generation by the properties that it read. The zero value is empty.
// It is not safe for concurrent use.
type Classes[T any] struct {
	root *class[T]
	size int
}

// class is a node of a decision tree: which property is read next, and what follows for each value.
type class[T any] struct {
	next map[string]*class[T]
	property
	of     func(*Proxy) string // nil for a leaf
	result T
}

// Len returns the number of classes.
func (c *Classes[T]) Len() int { return c.size }

// Get returns the result for the class of a proxy. If none is remembered it calls generate, which
// must be a function of the properties that it reads of the View and of what does not change.
func (c *Classes[T]) Get(p *Proxy, generate func(*View) T) T {
	if result, ok := c.Find(p); ok {
		return result
	}
	v := NewView(p)
	result := generate(v)
	c.put(v.read, result)
	return result
}

// Within is Get for a part of what is generated of a view: what the part reads, or was read when the result was made that is
// remembered, is read of the view, too.
func (c *Classes[T]) Within(v *View, generate func(*View) T) T {
	n := c.root
	for n != nil && n.of != nil {
		v.note(n.property, n.of)
		n = n.next[n.of(v.proxy)]
	}
	if n != nil {
		return n.result
	}
	part := NewView(v.proxy)
	result := generate(part)
	for _, r := range part.read {
		v.note(r.property, r.of)
	}
	c.put(part.read, result)
	return result
}

// put remembers the result of a class. The path to it asks for the properties in the order in which
// they were read. Up to the first new node it is the path of other classes, which read the same because
// they got the same values; a result whose path is another one is not remembered.
func (c *Classes[T]) put(read []reading, result T) {
	at, set := c.root, func(n *class[T]) { c.root = n }
	for _, r := range read {
		if at == nil {
			at = &class[T]{next: make(map[string]*class[T]), property: r.property, of: r.of}
			set(at)
		}
		if at.of == nil || at.property != r.property {
			return
		}
		parent := at
		set = func(n *class[T]) { parent.next[r.value] = n }
		at = parent.next[r.value]
	}
	if at != nil {
		return
	}
	set(&class[T]{result: result})
	c.size++
}

// path returns what has to be read of a proxy to find the result that is remembered for its class, and the leaf that has it; nil if
// there is none.
func (c *Classes[T]) path(p *Proxy) (read []reading, leaf *class[T]) {
	n := c.root
	for n != nil && n.of != nil {
		value := n.of(p)
		read = append(read, reading{n.property, value, n.of})
		n = n.next[value]
	}
	return read, n
}

// Find returns the remembered result for the class of a proxy.
func (c *Classes[T]) Find(p *Proxy) (result T, ok bool) {
	n := c.root
	for n != nil && n.of != nil {
		n = n.next[n.of(p)]
	}
	if n == nil {
		return result, false
	}
	return n.result, true
}

// Retain forgets the results of the classes that none of these proxies is of.
func (c *Classes[T]) Retain(proxies []*Proxy) {
	used := make(map[*class[T]]struct{})
	for _, p := range proxies {
		if _, leaf := c.path(p); leaf != nil {
			used[leaf] = struct{}{}
		}
		if len(used) == c.size {
			return
		}
	}
	if !c.root.prune(used) {
		c.root = nil
	}
	c.size = len(used)
}

// prune removes the leaves that are not used, and the nodes that lead to none. It reports whether anything is left. n may be nil.
func (n *class[T]) prune(used map[*class[T]]struct{}) bool {
	if n == nil {
		return false
	}
	if n.of == nil {
		_, ok := used[n]
		return ok
	}
	for value, next := range n.next {
		if !next.prune(used) {
			delete(n.next, value)
		}
	}
	return len(n.next) > 0
}
