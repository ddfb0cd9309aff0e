package etcd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// playedHistories is the number of histories that are played, a fifth of them with -short. Each waits for the disk some twenty times.
const playedHistories = 250

// played is a store, a copy of it that may be late, and what the copy must have.
type played struct {
	*testing.T
	random *rand.Rand
	client *Client
	source *copied
	file   string

	at    position
	kvs   map[string]*mvccpb.KeyValue
	log   []*clientv3.Event // what was not delivered yet
	saved *played           // a backup

	served map[string]string // by key, what the copy must have
	shadow map[string]string // what the calls of handlers amount to
	lacks  map[string]bool   // what a restored store lacks and the copy must hold
	held   time.Time         // until when
	trace  []string
}

// TestRandomHistoriesOfAStore plays random histories of documents that are changed, made invalid and deleted, of a copy that is
// late, reads everything again or is restarted, with and without the store, and of a store that is restored. A document is
// taken away only by a deletion, or by a restored store that was asked twice; an invalid one keeps its last valid content;
// handlers see each change once.
func TestRandomHistoriesOfAStore(t *testing.T) {
	histories := uint64(playedHistories)
	if testing.Short() {
		histories /= 5
	}
	for seed := range histories {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			p := &played{
				T: t, random: rand.New(rand.NewPCG(seed, 1)), client: unconnected(), file: filepath.Join(dir, fmt.Sprint(seed)), at: position{Cluster: 1, Term: 1, Revision: 1},
				kvs: make(map[string]*mvccpb.KeyValue), served: make(map[string]string), lacks: make(map[string]bool),
			}
			p.start()
			p.list()
			for range 5 + p.random.IntN(40) {
				p.step()
				p.compare(seed)
			}
			p.deliver(len(p.log))
			if len(p.lacks) > 0 {
				time.Sleep(ConfirmAfter)
				p.list()
			}
			p.compare(seed)
			if len(p.lacks) > 0 || p.source.State().Held > 0 {
				t.Errorf("seed %d: documents are held for ever", seed)
			}
			p.source.file.Close()
		})
		_ = os.RemoveAll(dir)
		if t.Failed() {
			return
		}
	}
}

func (p *played) say(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
}

// start starts a copy.
func (p *played) start() {
	p.source = newCopied(p.file)
	p.source.allowEmpty = true // what else happens to an empty store is in empty_test.go
	p.source.calls = nil
	p.shadow = make(map[string]string)
	p.source.RegisterHandler(config.WorkloadEntry, func(e config.Event) {
		path := p.client.path(e.Key())
		old, new := addressOf(e.Old), addressOf(e.New)
		if p.shadow[path] != old || old == new {
			p.Errorf("a handler is called for %s: %q to %q, and knows %q", path, old, new, p.shadow[path])
		}
		if p.shadow[path] = new; new == "" {
			delete(p.shadow, path)
		}
	})
	p.source.load()
}

func addressOf(doc *config.Config) string {
	if doc == nil {
		return ""
	}
	return doc.Spec.(interface{ GetAddress() string }).GetAddress()
}

// step does one thing at random.
func (p *played) step() {
	name := fmt.Sprintf("e%d", p.random.IntN(5))
	path := p.client.path(entry(name, "10.0.0.1").Meta.Key)
	switch p.random.IntN(12) {
	case 0, 1, 2:
		address := fmt.Sprintf("10.0.0.%d", 1+p.random.IntN(3))
		p.say("put %s %s", name, address)
		p.at.Revision++
		p.kvs[path] = kv(p.T, p.client, entry(name, address), p.at.Revision)
		p.log = append(p.log, puts(p.kvs[path]))
	case 3:
		p.say("put %s invalid", name)
		p.at.Revision++
		p.kvs[path] = &mvccpb.KeyValue{Key: []byte(path), Value: []byte("{"), ModRevision: p.at.Revision}
		p.log = append(p.log, puts(p.kvs[path]))
	case 4:
		if p.kvs[path] != nil {
			p.say("delete %s", name)
			p.at.Revision++
			delete(p.kvs, path)
			p.log = append(p.log, deletes(path, p.at.Revision))
		}
	case 5, 6:
		p.deliver(1 + p.random.IntN(3))
	case 7:
		p.say("compaction")
		p.list()
	case 8:
		p.say("restart")
		p.source.file.Close()
		p.start()
		if p.random.IntN(2) == 0 {
			p.say("without the store")
			p.source.serveFile(time.Now().Add(-time.Second))
			p.compareShadow()
		}
		p.list()
	case 9:
		p.say("backup")
		p.saved = &played{at: p.at, kvs: maps.Clone(p.kvs)}
	case 10:
		p.restore()
	case 11:
		time.Sleep(ConfirmAfter / 3)
	}
}

// deliver lets the watch deliver a number of events.
func (p *played) deliver(n int) {
	n = min(n, len(p.log))
	p.say("deliver %d", n)
	for _, e := range p.log[:n] {
		path := string(e.Kv.Key)
		delete(p.lacks, path)
		switch {
		case e.Type == mvccpb.Event_DELETE:
			delete(p.served, path)
		default:
			p.serve(e.Kv)
		}
	}
	w := &watch{Source: p.source.Source}
	check(p.T, w.response(clientv3.WatchResponse{Events: p.log[:n]}, true))
	p.log = p.log[n:]
}

// serve takes in what the store has of a document.
func (p *played) serve(kv *mvccpb.KeyValue) {
	if _, doc, _ := p.client.decodeKV(kv); doc != nil {
		p.served[string(kv.Key)] = addressOf(doc)
	}
}

// list lets the copy read everything.
func (p *played) list() {
	p.log = nil
	l := &listing{at: p.at}
	for _, path := range slices.Sorted(maps.Keys(p.kvs)) {
		l.kvs = append(l.kvs, p.kvs[path])
	}
	restored := p.source.position().continues(p.at, history{}) != nil
	if restored {
		p.held = time.Now().Add(ConfirmAfter)
	}
	confirmed := p.held.IsZero() || !time.Now().Before(p.held)
	clear(p.lacks)
	for path := range p.served {
		switch {
		case p.kvs[path] != nil:
		case confirmed:
			delete(p.served, path)
		default:
			p.lacks[path] = true
		}
	}
	if len(p.lacks) == 0 {
		p.held = time.Time{}
	}
	for _, kv := range l.kvs {
		p.serve(kv)
	}
	p.source.take(l, time.Now())
}

// restore brings the store back to the backup. The copy reads it at once: the position shows it.
func (p *played) restore() {
	if p.saved == nil || p.source.position().continues(p.saved.at, history{}) == nil && p.saved.at.Cluster == p.at.Cluster {
		return // nobody can notice it: no revision went back
	}
	p.say("restored to revision %d", p.saved.at.Revision)
	p.at, p.kvs = p.saved.at, maps.Clone(p.saved.kvs)
	p.list()
}

func (p *played) compareShadow() {
	for path, address := range p.shadow {
		if p.served[path] != address {
			p.Errorf("%s is served as %q, want %q", path, address, p.served[path])
		}
	}
}

// compare checks what the copy has.
func (p *played) compare(seed uint64) {
	got := make(map[string]string)
	for _, doc := range p.source.List(config.WorkloadEntry, "") {
		got[p.client.path(doc.Meta.Key)] = addressOf(doc)
	}
	if !maps.Equal(got, p.served) || !maps.Equal(got, p.shadow) || p.source.State().Held != len(p.lacks) {
		p.Errorf("seed %d: the copy has %v, handlers know %v, %d held; want %v, %d held", seed, got, p.shadow, p.source.State().Held, p.served, len(p.lacks))
	}
	if p.Failed() {
		p.Fatalf("seed %d, after\n%s", seed, strings.Join(p.trace, "\n"))
	}
}
