package register

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// RestartGrace is how long a workload stays after a restart of the control plane until its proxy has connected again.
const RestartGrace = time.Minute

// writeDelay is how long a change waits for others before the file is written.
const writeDelay = 200 * time.Millisecond

// record is a workload in the file: an element of a list in JSON.
type record struct {
	Node      string            `json:"node"`
	Group     string            `json:"group"`
	Namespace string            `json:"namespace"`
	Account   string            `json:"account"`
	Address   string            `json:"address"`
	Network   string            `json:"network,omitempty"`
	Locality  string            `json:"locality,omitempty"` // region/zone/subzone
	Labels    map[string]string `json:"labels,omitempty"`
	// Health is the State, with the message and since when. It is missing in the file of a version that knew no health, with
	// which every workload was an endpoint: it then stays one until a report comes.
	Health        State     `json:"health,omitempty"`
	HealthMessage string    `json:"healthMessage,omitempty"`
	HealthSince   time.Time `json:"healthSince,omitzero"`
	// Unchecked is that of health, Probe that its proxy has a probe.
	Unchecked bool `json:"unchecked,omitempty"`
	Probe     bool `json:"probe,omitempty"`
}

// health returns the health of a workload in the file.
func (rec record) health() (health, error) {
	h := health{Health: Health{rec.Health, redact.Brief(rec.HealthMessage, maxHealthMessage), rec.HealthSince}, unchecked: rec.Unchecked}
	switch rec.Health {
	case "":
		h.State, h.unchecked = Unknown, true
	case Unknown, Healthy, Unhealthy:
	default:
		return h, fmt.Errorf("the health %q is not %s, %s or %s", rec.Health, Unknown, Healthy, Unhealthy)
	}
	return h, nil
}

// Load reads the workloads that had registered before a restart from a file, in which Keep keeps them. They stay for
// RestartGrace. A file that does not exist has none. One that is damaged is set aside under the name FILE.damaged, and has
// none: workloads are known once their proxies have connected, and a control plane that does not start would know nobody.
func (r *Registrar) Load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("register: %w", err)
	}
	var members []loaded
	if err == nil {
		if members, err = parse(text); err != nil {
			r.log.Error("the file of the registered workloads is damaged, and set aside: they are known once their proxies have connected", "file", path+".damaged", "err", err)
			if err := os.Rename(path, path+".damaged"); err != nil {
				return fmt.Errorf("register: %w", err)
			}
		}
	}
	r.events.Lock()
	defer r.events.Unlock()
	r.path = path
	for _, one := range members {
		m := r.memberOf(one.proxy)
		m.proxy, m.health = one.proxy, one.health
		r.leave(m, RestartGrace)
	}
	return nil
}

// loaded is a workload of the file.
type loaded struct {
	proxy  *proxy.Proxy
	health health
}

// parse reads the content of a file, as a whole.
func parse(text []byte) (out []loaded, err error) {
	var records []record
	if err := json.Unmarshal(text, &records); err != nil {
		return nil, err
	}
	for _, rec := range records {
		var one loaded
		if one.proxy, err = rec.proxy(); err != nil {
			return nil, err
		}
		if one.health, err = rec.health(); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

func (rec record) proxy() (*proxy.Proxy, error) {
	address, err := netip.ParseAddr(rec.Address)
	if err != nil {
		return nil, err
	}
	p := &proxy.Proxy{
		Node: rec.Node, Namespace: rec.Namespace, AutoRegisterGroup: rec.Group, ServiceAccount: rec.Account, Authenticated: true,
		IPs: []netip.Addr{address}, Network: rec.Network, GivenLabels: rec.Labels, HasReadinessProbe: rec.Probe,
	}
	if rec.Locality != "" {
		parts := append(strings.SplitN(rec.Locality, "/", 3), "", "")
		p.Locality = &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
	}
	return p, nil
}

// Keep keeps the workloads that have registered in the file of Load, until ctx ends. Without a file it does nothing.
func (r *Registrar) Keep(ctx context.Context) error {
	r.events.Lock()
	path := r.path
	r.events.Unlock()
	if path == "" {
		return nil
	}
	wake.Batch(ctx, r.changed, writeDelay, func() {
		if err := r.write(path); err != nil {
			r.log.Error("the registered workloads cannot be kept", "err", err)
		}
	})
	return nil
}

func (r *Registrar) write(path string) error {
	r.events.Lock()
	records := []record{}
	for _, m := range r.holders {
		records = append(records, record{
			Node: m.proxy.Node, Group: m.group.Name, Namespace: m.group.Namespace, Account: m.account, Address: m.proxy.IPs[0].String(),
			Network: m.proxy.Network, Locality: localityOf(m.proxy), Labels: m.proxy.GivenLabels,
			Health: m.health.State, HealthMessage: m.health.Message, HealthSince: m.health.Since, Unchecked: m.health.unchecked,
			Probe: m.proxy.HasReadinessProbe,
		})
	}
	r.events.Unlock()
	slices.SortFunc(records, func(a, b record) int {
		return strings.Compare(a.Namespace+"/"+a.Group+a.Address, b.Namespace+"/"+b.Group+b.Address)
	})
	text, err := json.MarshalIndent(records, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o600)
}

// memberOf returns the member that a proxy is; a new one if it is none yet. It is called with events held.
func (r *Registrar) memberOf(p *proxy.Proxy) *member {
	id := identityOf(p)
	m := r.members[id]
	if m == nil {
		m = &member{identity: id, connected: make(map[uint64]bool), group: config.Key{Kind: config.WorkloadGroup, Namespace: p.Namespace, Name: p.AutoRegisterGroup}}
		m.health.State = Unknown
		r.members[id] = m
		at := r.candidates[id.key]
		i, _ := slices.BinarySearchFunc(at, m, func(a, b *member) int { return strings.Compare(a.account, b.account) })
		r.candidates[id.key] = slices.Insert(at, i, m)
	}
	return m
}
