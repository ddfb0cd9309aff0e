package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// store is where documents are.
type store interface {
	// put writes a document.
	put(d document) error
	// fill writes many documents.
	fill(all []document) error
	// flags are those of holdfast-mesh that make it read the store.
	flags() []string
	// pid is the process of the store; 0 for none.
	pid() int
	close()
}

// directory is a store of files.
type directory struct{ path string }

func (d directory) put(doc document) error {
	path := filepath.Join(d.path, doc.namespace, doc.plural+"-"+doc.name+".json")
	if err := os.WriteFile(path+".tmp", doc.content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (d directory) fill(all []document) error {
	for _, doc := range all {
		if err := os.MkdirAll(filepath.Join(d.path, doc.namespace), 0o755); err != nil {
			return err
		}
		if err := d.put(doc); err != nil {
			return err
		}
	}
	return nil
}

func (d directory) flags() []string { return []string{"--config", d.path} }
func (d directory) pid() int        { return 0 }
func (d directory) close()          {}

// etcdCommand is the first argument of this program as the process of an etcd.
const etcdCommand = "etcd"

const (
	etcdTime = 30 * time.Second
	// perTxn is how many documents are written in one transaction (etcd: 128 at most, --max-txn-ops).
	perTxn = 100
)

// etcd is a store in an etcd of one member: its server module in a process of its own, so that what it costs can
// be told from the rest.
type etcd struct {
	url     string
	process *testbed.Process
	client  *clientv3.Client
}

// runEtcd is the process of an etcd: it serves at a URL until it is ended.
func runEtcd(dir, clientURL, peerURL string) error {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = dir, "error"
	for _, one := range []struct {
		text   string
		listen *[]url.URL
		tell   *[]url.URL
	}{{clientURL, &cfg.ListenClientUrls, &cfg.AdvertiseClientUrls}, {peerURL, &cfg.ListenPeerUrls, &cfg.AdvertisePeerUrls}} {
		u, err := url.Parse(one.text)
		if err != nil {
			return err
		}
		*one.listen, *one.tell = []url.URL{*u}, []url.URL{*u}
	}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	return <-e.Err()
}

func startEtcd(ctx context.Context, dir string) (*etcd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	client, err1 := testbed.FreePort()
	peer, err2 := testbed.FreePort()
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	e := &etcd{url: fmt.Sprintf("http://127.0.0.1:%d", client)}
	if e.process, err = testbed.Start("etcd", filepath.Join(dir, "etcd.log"), self, etcdCommand, filepath.Join(dir, "etcd"), e.url, fmt.Sprintf("http://127.0.0.1:%d", peer)); err != nil {
		return nil, err
	}
	if e.client, err = clientv3.New(clientv3.Config{Endpoints: []string{e.url}, DialTimeout: etcdTime, Logger: zap.NewNop()}); err != nil {
		e.process.Kill()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	for {
		once, cancel := context.WithTimeout(ctx, time.Second)
		_, err := e.client.Get(once, "/")
		cancel()
		if err == nil {
			return e, nil
		}
		if ctx.Err() != nil || e.process.Alive() != nil {
			e.close()
			return nil, fmt.Errorf("etcd does not answer: %w\n%s", err, e.process.Tail(5))
		}
	}
}

// prefix is that of the documents, holdfast-mesh's default.
const prefix = "/holdfast/"

func (d document) key() string {
	kind := d.plural
	if d.group != "" {
		kind += "." + d.group
	}
	return prefix + kind + "/" + cmp.Or(d.namespace, "_") + "/" + d.name
}

func (e *etcd) put(d document) error {
	ctx, cancel := context.WithTimeout(context.Background(), etcdTime)
	defer cancel()
	_, err := e.client.Put(ctx, d.key(), string(d.content))
	return err
}

func (e *etcd) fill(all []document) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*etcdTime)
	defer cancel()
	for len(all) > 0 {
		n := min(len(all), perTxn)
		var ops []clientv3.Op
		for _, d := range all[:n] {
			ops = append(ops, clientv3.OpPut(d.key(), string(d.content)))
		}
		if _, err := e.client.Txn(ctx).Then(ops...).Commit(); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (e *etcd) flags() []string { return []string{"--etcd", e.url} }
func (e *etcd) pid() int        { return e.process.PID() }

func (e *etcd) close() {
	_ = e.client.Close()
	e.process.Kill() // its data is not needed any more
}
