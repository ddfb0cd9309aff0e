package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/nearest"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/inspect"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/server"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Explain says what would happen to a request that the workload of a connected proxy sends, by the proxy's node id, and
// what the proxies at the other end would do with it.
func (e *Environment) Explain(node string, req inspect.Request) (*inspect.Explanation, error) {
	served, err := e.served(node)
	if err != nil {
		return nil, err
	}
	who := served[0].Proxy
	if c := req.Client; who.Type == proxy.Sidecar && (c.Principal != "" || c.Address != "" || c.ServerName != "") {
		return nil, fmt.Errorf("%w: %s is a sidecar, and what it sends comes from its workload", ErrClient, node)
	}
	if svc := e.discovery.ServiceOf(service.Hostname(strings.ToLower(req.Host))); svc != nil {
		req.Addresses = svc.AddressesIn(who.Cluster)
	}
	explanation := inspect.Explain(served[0], req)
	explanation.Warnings = append(served[0].Warnings(), e.warnings.about(req.Host)...)
	addNetworks(explanation, served[0])
	e.addServers(explanation, req, who)
	e.addPlaces(explanation)
	return explanation, nil
}

// ErrClient says that there is no client to describe.
var ErrClient = errors.New("a certificate, an address and a server name describe the client of a gateway, or of a request that comes to the workload (--inbound)")

// maxServers is how many other ends are explained: they are alike, mostly.
const maxServers = 5

// addServers explains what the proxies at the endpoints would do with a request of a proxy.
func (e *Environment) addServers(explanation *inspect.Explanation, req inspect.Request, who *proxy.Proxy) {
	served := e.server.Served("")
	for _, ep := range explanation.Endpoints() {
		address, err := netip.ParseAddr(ep.Address)
		if err != nil {
			continue
		}
		if len(explanation.Servers) >= maxServers {
			return
		}
		for _, s := range served {
			if s.Proxy.Type != proxy.Sidecar || !slices.Contains(s.Proxy.IPs, address) || !inspect.TakesInbound(s, ep.Port) {
				continue
			}
			there := explanation.Forwarded(req)
			there.Port, there.Addresses = ep.Port, []string{ep.Address}
			there.Client = inspect.Client{Address: who.IPs[0].String(), Claims: req.Client.Claims}
			if ep.MeshTLS {
				there.Client.Principal = e.principalOf(s, who)
			}
			server := inspect.Server{Proxy: s.Proxy.Node, Explanation: inspect.ExplainInbound(s, there)}
			server.Warnings = s.Warnings()
			if ep.MeshTLS && who.ServiceAccount == "" {
				server.Outcome += "; the node of the client names no service account (SERVICE_ACCOUNT): default is assumed"
			}
			explanation.Servers = append(explanation.Servers, server)
		}
	}
}

// principalOf returns the SPIFFE ID of the certificate of a proxy.
func (e *Environment) principalOf(s *server.Served, who *proxy.Proxy) string {
	return "spiffe://" + cmp.Or(who.TrustDomain, s.TrustDomain()) + "/ns/" + who.Namespace + "/sa/" + cmp.Or(who.ServiceAccount, "default")
}

// ExplainInbound says what would happen to a request that comes to the workload of a connected proxy, at a port of the
// workload.
func (e *Environment) ExplainInbound(node string, req inspect.Request) (*inspect.Explanation, error) {
	served, err := e.served(node)
	if err != nil {
		return nil, err
	}
	req.Addresses = []string{served[0].Proxy.IPs[0].String()}
	explanation := inspect.ExplainInbound(served[0], req)
	explanation.Warnings = served[0].Warnings()
	e.addPlaces(explanation)
	return explanation, nil
}

// addNetworks says of each endpoint that is the gateway of a network which one that is.
func addNetworks(explanation *inspect.Explanation, served *server.Served) {
	for i, step := range explanation.Steps {
		if step.Kind != "endpoint" {
			continue
		}
		if network := served.NetworkAt(step.Name); network != "" {
			explanation.Steps[i].Detail += ", the gateway of the network " + network
		}
	}
}

// addPlaces says of each document where it was written.
func (e *Environment) addPlaces(explanation *inspect.Explanation) {
	for i, step := range explanation.Steps {
		if key, ok := generate.OriginOf(step.Document); ok {
			explanation.Steps[i].Document = e.place(key)
		}
	}
	for _, s := range explanation.Servers {
		e.addPlaces(s.Explanation)
	}
}

// place returns a document with the place where it was written.
func (e *Environment) place(key config.Key) string {
	if c := e.config.Get(key); c != nil && c.Origin != "" {
		return key.String() + " (" + c.Origin + ")"
	}
	return key.String()
}

// served returns what a connected proxy is served, or all of them for "".
func (e *Environment) served(node string) ([]*server.Served, error) {
	served := e.server.Served(node)
	if len(served) > 0 {
		return served, nil
	}
	var nodes []string
	for _, p := range e.server.Proxies() {
		nodes = append(nodes, p.Node)
	}
	slices.Sort(nodes)
	if len(nodes) == 0 {
		return nil, errors.New("no proxy is connected")
	}
	nodes = slices.Compact(nodes)
	return nil, fmt.Errorf("no proxy %q is connected%s; %s", node, nearest.Question("", node, nodes), someOf(nodes))
}

// maxNamed is how many proxies an error names.
const maxNamed = 20

// someOf names the proxies that there are, or the first of many.
func someOf(nodes []string) string {
	text := "there are " + strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
	if more := len(nodes) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// ProxyDifference is what a change of documents would do to a proxy.
type ProxyDifference struct {
	Node        string               `json:"node"`
	Differences []inspect.Difference `json:"differences"`
}

// maxDiffText bounds what Diff says of what differs, of all proxies together, in bytes.
const maxDiffText = 32 << 20

// Diff returns what other documents, by file name, would change for a connected proxy, or for each of
// them for "". Problems are those of the documents; with errors among them nothing is compared. It returns the error of ctx soon after
// that ends: within what one part of the configuration of one proxy takes, which is bounded as the documents in use are.
func (e *Environment) Diff(ctx context.Context, node string, files map[string]string) (out []ProxyDifference, problems []config.Problem, err error) {
	served, err := e.served(node)
	if err != nil {
		return nil, nil, err
	}
	store, problems, err := readAll(ctx, files)
	if err != nil || config.Invalid(problems) {
		return nil, problems, err
	}
	for _, c := range e.registrar.Entries(store) {
		if _, err := store.Create(context.Background(), c); err != nil {
			return nil, problems, err
		}
	}
	shards := &service.Shards{}
	discovery := e.registries(store, service.Options{
		Cluster: e.cfg.Cluster, Domain: e.cfg.Domain, Shards: shards,
		OnService: func(service.ServiceEvent) {}, OnEndpoints: func(service.Key, service.Change) {},
	})
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- store.Run(running) }()
	for !store.HasSynced() {
		if !wake.Sleep(ctx, syncPoll) {
			return nil, problems, ctx.Err()
		}
	}
	stop()
	<-ended
	if ctx.Err() != nil {
		return nil, problems, ctx.Err()
	}
	snap := push.New(struct {
		config.Reader
		*service.Discovery
		push.KeyReader
	}{store, discovery, e.keyReader()}, e.cfg.Domain, nil, nil, true)
	room := maxDiffText
	for _, s := range served {
		would, ok := server.WouldServe(ctx, snap, shards, discovery, s.Proxy)
		if !ok {
			return nil, problems, ctx.Err()
		}
		differences, ok := inspect.Diff(ctx, s, would, &room)
		if !ok {
			return nil, problems, ctx.Err()
		}
		out = append(out, ProxyDifference{s.Proxy.Node, differences})
	}
	return out, problems, nil
}

// readAll reads the documents of files into a store, until ctx ends.
func readAll(ctx context.Context, files map[string]string) (*config.Memory, []config.Problem, error) {
	store := config.NewMemory()
	var problems []config.Problem
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, problems, ctx.Err()
		}
		documents, broken := config.Read(name, []byte(files[name]))
		if broken != nil {
			problems = append(problems, *broken)
		}
		for _, d := range documents {
			problems = append(problems, d.Problems...)
			if d.Config == nil || config.Invalid(d.Problems) {
				continue
			}
			if _, err := store.Create(context.Background(), d.Config); err != nil {
				return nil, problems, fmt.Errorf("%s: %s: %w", name, d.Config.Key, err)
			}
		}
	}
	return store, problems, nil
}
