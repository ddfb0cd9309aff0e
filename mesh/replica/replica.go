// Package replica lets the servers of one store know of each other: which there are, how far each is in the history of the
// store, and which proxies are connected to them.
//
// Each server keeps what it tells in the store, under a lease, so that it is gone soon after the server is: a record of itself
// every Interval, and one of each of its proxies when that has changed. Nothing of it is on the path of a push, and nothing
// depends on it but what is shown, with one exception: a server that has been behind another one for MaxLag says so (Behind),
// so that its proxies can go to the others. The one that is ahead of all is never behind.
//
// It promises that a store that does not answer changes nothing, and that what is told costs the store little: a bounded
// number of writes in each Interval, and none for a proxy of which nothing has changed. Run is called once; the other methods
// may be called by several goroutines at once.
package replica

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/mesh/server"
)

const (
	// Interval is how often a server tells what has changed, and looks at the others.
	Interval = 5 * time.Second
	// MaxLag is how long a server may be behind another one.
	MaxLag = 30 * time.Second
	// leaseTime is how long the records of a server stay that does not renew its lease any more.
	leaseTime = 20 * time.Second
	// requestTimeout is how long one request to the store may take, revokeTimeout how long the records may take to be
	// withdrawn at the end.
	requestTimeout, revokeTimeout = 5 * time.Second, time.Second
	// remindAfter is how often it is logged that the others do not know of this server.
	remindAfter = 10 * time.Minute
	// maxWrites bounds the proxies that are told in one Interval, and maxOps those of one request, of which etcd takes 128
	// by default.
	maxWrites = 2000
	maxOps    = 100
	// page is how many records one request reads.
	page = 1000
)

// Record is what a server tells of itself.
type Record struct {
	// ID is the name of the host, and some letters that make it unique.
	ID      string    `json:"id"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Cluster is the id of the cluster of etcd, and Revision that up to which the server has all documents.
	Cluster  uint64 `json:"cluster"`
	Revision int64  `json:"revision"`
	// Proxies is the number of the proxies that are connected, MaxProxies how many may be; 0 for any number.
	Proxies    int `json:"proxies"`
	MaxProxies int `json:"maxProxies,omitempty"`
	// Behind says that the server serves nobody, because it is behind the others.
	Behind bool `json:"behind,omitempty"`
}

// Proxy is a proxy that is connected to a server.
type Proxy struct {
	// Replica is the ID of the server; "" if it has its documents for itself.
	Replica string `json:"replica,omitempty"`
	server.ProxyStatus
}

// Config configures a Replica.
type Config struct {
	Client *etcd.Client
	// State returns how far the copy of the documents is, Proxies who is connected.
	State   func() etcd.State
	Proxies func() []server.ProxyStatus
	// Version, and MaxProxies, are those of Record.
	Version    string
	MaxProxies int
	Log        *slog.Logger
}

// Replica is one server. Create one with New.
type Replica struct {
	cfg     Config
	started time.Time
	id      string

	// What follows is only used by Run. kv and prefix are those of the session.
	kv     *clientv3.Client
	prefix string
	// told has what the store has of the proxies, seen what they were in the Interval
	// before. lag is how far the others were, and since when this server has not been there.
	told, seen map[string]string
	lag        lag
	// warned is when it was last logged that the others do not know of this server; zero if they do.
	warned time.Time

	mu     sync.Mutex
	behind string        // why this server is behind; "" if it is not
	turned chan struct{} // closed when that changes
}

// New returns a server that the others do not know yet.
func New(cfg Config) *Replica {
	return &Replica{
		cfg: cfg, started: time.Now(), id: newID(),
		told: make(map[string]string), seen: make(map[string]string), turned: make(chan struct{}),
	}
}

// newID returns the name of the host with eight random digits: two servers of one host, and of one host before and after a
// restart, are two.
func newID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	unique := make([]byte, 4)
	_, _ = rand.Read(unique) // it never fails
	return strings.ReplaceAll(host, "/", "-") + "-" + hex.EncodeToString(unique)
}

// ID returns the name of this server.
func (r *Replica) ID() string { return r.id }

// Behind returns why this server is behind the others, "" if it is not, and a channel that is closed when that changes.
func (r *Replica) Behind() (why string, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behind, r.turned
}

func (r *Replica) setBehind(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if (r.behind == "") != (why == "") {
		close(r.turned)
		r.turned = make(chan struct{})
		if why != "" {
			r.cfg.Log.Error("this replica is behind the others: its proxies are sent to them", "err", why)
		} else {
			r.cfg.Log.Info("this replica is as far as the others again")
		}
	}
	r.behind = why
}

// Run tells the others of this server, and looks at them, until ctx ends; then its records are withdrawn. That the
// others do not know of this server is logged when it begins, and every remindAfter.
func (r *Replica) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if now := time.Now(); now.Sub(r.warned) >= remindAfter {
			r.warned = now
			r.cfg.Log.Warn("the other replicas do not know of this one for now", "err", err)
		} else {
			r.cfg.Log.Debug("the other replicas do not know of this one", "err", err)
		}
		wake.Sleep(ctx, Interval)
	}
}

// session tells as long as one lease is renewed.
func (r *Replica) session(ctx context.Context) (err error) {
	if r.kv, r.prefix, err = r.cfg.Client.Replicas(ctx); err != nil {
		return r.cfg.Client.Explain(err)
	}
	lease, err := within(ctx, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return r.kv.Grant(ctx, int64(leaseTime/time.Second))
	})
	if err != nil {
		return r.cfg.Client.Explain(err)
	}
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
		defer cancel()
		_, _ = r.kv.Revoke(late, lease.ID) // it ends by itself
	}()
	renewed, err := r.kv.KeepAlive(ctx, lease.ID)
	if err != nil {
		return r.cfg.Client.Explain(err)
	}
	if !r.warned.IsZero() {
		r.warned = time.Time{}
		r.cfg.Log.Info("the other replicas know of this one again")
	}
	clear(r.told)
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		if err := r.round(ctx, lease.ID); err != nil && ctx.Err() == nil {
			r.cfg.Log.Debug("replicas", "err", err) // what there is of the store is said by the copy of the documents
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case _, open := <-renewed:
				if !open {
					return fmt.Errorf("its lease of %s was not renewed", leaseTime)
				}
			case <-tick.C:
				waiting = false
			}
		}
	}
}

// within bounds a request.
func within[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}

// round tells what has changed, and looks at the others.
func (r *Replica) round(ctx context.Context, lease clientv3.LeaseID) error {
	proxies := r.cfg.Proxies()
	own := r.record(len(proxies))
	text, err := json.Marshal(own)
	if err != nil {
		return err
	}
	if _, err := within(ctx, func(ctx context.Context) (*clientv3.PutResponse, error) {
		return r.kv.Put(ctx, r.serverKey(r.id), string(text), clientv3.WithLease(lease))
	}); err != nil {
		return r.cfg.Client.Explain(err)
	}
	others, err := r.Servers(ctx)
	if err != nil {
		return err
	}
	r.setBehind(r.lag.judge(time.Now(), own, others))
	return r.tellProxies(ctx, lease, proxies)
}

// Record returns what this server would tell of itself now.
func (r *Replica) Record() Record { return r.record(len(r.cfg.Proxies())) }

// record is that of this server now.
func (r *Replica) record(proxies int) Record {
	state := r.cfg.State()
	behind, _ := r.Behind()
	return Record{
		ID: r.id, Version: r.cfg.Version, Started: r.started.UTC().Truncate(time.Second), Cluster: state.Cluster, Revision: state.Revision,
		Proxies: proxies, MaxProxies: r.cfg.MaxProxies, Behind: behind != "",
	}
}

func (r *Replica) serverKey(id string) string { return r.prefix + "servers/" + id }

// proxyKey returns the key of a proxy. Its node id is escaped, so that it has no slash.
func (r *Replica) proxyKey(node string) string {
	return r.prefix + "proxies/" + r.id + "/" + url.PathEscape(node)
}

// tellProxies writes the records of the proxies that have changed, and have been the same for an Interval or are new, and
// deletes those of proxies that have gone.
func (r *Replica) tellProxies(ctx context.Context, lease clientv3.LeaseID, proxies []server.ProxyStatus) error {
	now := make(map[string]string, len(proxies))
	for _, p := range proxies {
		text, err := json.Marshal(Proxy{r.id, p})
		if err != nil {
			return err
		}
		now[r.proxyKey(p.Node)] = string(text) // of several streams of a proxy, the last one
	}
	ops := r.changes(now, lease)
	for chunk := range slices.Chunk(ops[:min(len(ops), maxWrites)], maxOps) {
		operations := make([]clientv3.Op, 0, len(chunk))
		for _, c := range chunk {
			operations = append(operations, c.op)
		}
		if _, err := within(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return r.kv.Txn(ctx).Then(operations...).Commit()
		}); err != nil {
			return r.cfg.Client.Explain(err)
		}
		for _, c := range chunk {
			if c.text == "" {
				delete(r.told, c.key)
			} else {
				r.told[c.key] = c.text
			}
		}
	}
	return nil
}

// change is a write that is due.
type change struct {
	key, text string // "" if it is deleted
	op        clientv3.Op
}

// changes returns the writes that are due.
func (r *Replica) changes(now map[string]string, lease clientv3.LeaseID) (out []change) {
	for _, key := range slices.Sorted(maps.Keys(r.told)) {
		if _, connected := now[key]; !connected {
			out = append(out, change{key: key, op: clientv3.OpDelete(key)})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		text := now[key]
		told, known := r.told[key]
		if text == told || known && r.seen[key] != text {
			continue
		}
		out = append(out, change{key, text, clientv3.OpPut(key, text, clientv3.WithLease(lease))})
	}
	r.seen = now
	return out
}

// Servers reads the records of all servers, by ID.
func (r *Replica) Servers(ctx context.Context) ([]Record, error) { return Servers(ctx, r.cfg.Client) }

// Servers reads the records of all servers of a store, by ID.
func Servers(ctx context.Context, client *etcd.Client) ([]Record, error) {
	all, revision, err := readAll[Record](ctx, client, "servers/")
	// What no server can have written is no record of one.
	return slices.DeleteFunc(all, func(r Record) bool { return r.Revision > revision || r.ID == "" || r.Started.IsZero() }), err
}

// Proxies reads the proxies of all servers of a store, by node and server.
func Proxies(ctx context.Context, client *etcd.Client) ([]Proxy, error) {
	all, _, err := readAll[Proxy](ctx, client, "proxies/")
	slices.SortStableFunc(all, func(a, b Proxy) int { return cmp.Compare(a.Node, b.Node) })
	return all, err
}

// readAll reads all records below a key, in the order of their keys, and returns the revision of the store, too. What cannot
// be read was written by another version, and is left out, as is what is under no lease.
func readAll[T any](ctx context.Context, client *etcd.Client, below string) (out []T, revision int64, err error) {
	kv, prefix, err := client.Replicas(ctx)
	if err != nil {
		return nil, 0, client.Explain(err)
	}
	from, end := prefix+below, clientv3.GetPrefixRangeEnd(prefix+below)
	for {
		resp, err := within(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		})
		if err != nil {
			return nil, 0, client.Explain(err)
		}
		for _, record := range resp.Kvs {
			var one T
			if record.Lease != 0 && json.Unmarshal(record.Value, &one) == nil {
				out = append(out, one)
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return out, resp.Header.GetRevision(), nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
