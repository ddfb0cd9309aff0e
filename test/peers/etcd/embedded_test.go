package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// store is an etcd of one member in this process.
type store struct {
	*rig.Rig
	addr, peer string
	tls        tlsFiles // empty for plaintext
	token      string   // of the cluster
	server     *embed.Etcd
	raw        *clientv3.Client // without any restriction
}

// newStore starts an etcd with an empty database.
func newStore(t *testing.T) *store {
	s := &store{Rig: rig.New(t), token: "tests"}
	s.addr, s.peer = s.FreeAddr(), s.FreeAddr()
	s.start("data")
	t.Cleanup(func() { s.stop() })
	return s
}

// start starts etcd on a directory of data.
func (s *store) start(data string) {
	s.Helper()
	conf := embed.NewConfig()
	conf.Dir = s.Path(data)
	conf.Name, conf.InitialClusterToken = "one", s.token
	conf.LogLevel, conf.LogOutputs = "fatal", []string{s.Path("etcd.log")}
	conf.UnsafeNoFsync = true
	client, peer := url.URL{Scheme: "http", Host: s.addr}, url.URL{Scheme: "http", Host: s.peer}
	if s.tls.ca != "" {
		client.Scheme = "https"
		conf.ClientTLSInfo.CertFile, conf.ClientTLSInfo.KeyFile = s.tls.cert, s.tls.key
		conf.ClientTLSInfo.TrustedCAFile, conf.ClientTLSInfo.ClientCertAuth = s.tls.ca, true
	}
	conf.ListenClientUrls, conf.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	conf.ListenPeerUrls, conf.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	conf.InitialCluster = conf.InitialClusterFromName(conf.Name)
	server, err := embed.StartEtcd(conf)
	s.Check(err)
	s.server = server
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(rig.Limit):
		s.Fatal("etcd does not start")
	}
	if s.tls.ca == "" {
		s.raw, err = clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, DialTimeout: rig.Limit})
		s.Check(err)
	}
}

// stop stops etcd; what it has stays on the disk.
func (s *store) stop() {
	if s.raw != nil {
		_ = s.raw.Close()
		s.raw = nil
	}
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
}

// copyData copies the data of a stopped etcd, as a backup of its volume does.
func (s *store) copyData(from, to string) {
	s.Helper()
	s.Check(os.CopyFS(s.Path(to), os.DirFS(s.Path(from))))
}

func (s *store) url() string {
	return cmp.Or(map[bool]string{true: "https://"}[s.tls.ca != ""], "http://") + s.addr
}

// open returns a client of a person.
func (s *store) open(o etcd.Options) *etcd.Client {
	s.Helper()
	if len(o.Endpoints) == 0 {
		o.Endpoints = []string{s.url()}
	}
	o.Author = cmp.Or(o.Author, "alice@desk")
	c, err := etcd.Open(o)
	s.Check(err)
	s.Cleanup(c.Close)
	return c
}

// put writes a value without any check.
func (s *store) put(key, value string) {
	s.Helper()
	_, err := s.raw.Put(s.Context(), key, value)
	s.Check(err)
}

// compact forgets all revisions but the last.
func (s *store) compact() {
	s.Helper()
	resp, err := s.raw.Get(s.Context(), "none")
	s.Check(err)
	_, err = s.raw.Compact(s.Context(), resp.Header.Revision)
	s.Check(err)
}

// copied is a Source that runs, and what its handlers were called for.
type copied struct {
	*etcd.Source
	*rig.Rig
	log bytesLog

	mu    sync.Mutex
	calls []string
}

// bytesLog is a log in memory.
type bytesLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *bytesLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *bytesLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// follow runs a Source until the test ends.
func follow(r *rig.Rig, client *etcd.Client, file string) *copied {
	r.Helper()
	c := &copied{Rig: r}
	c.Source = etcd.NewSource(etcd.SourceConfig{Client: client, File: file, AllowEmpty: true, Log: slog.New(slog.NewTextHandler(&c.log, nil))})
	for _, schema := range config.Schemas {
		c.RegisterHandler(schema.Kind, c.called)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := c.Run(ctx); !errors.Is(err, context.Canceled) {
			r.Errorf("Run ended with %v", err)
		}
	}()
	r.Cleanup(func() {
		cancel()
		<-ended
		if r.Failed() {
			r.Log(c.log.String())
		}
	})
	return c
}

func (c *copied) called(e config.Event) {
	call := "change "
	switch {
	case e.Old == nil:
		call = "add "
	case e.New == nil:
		call = "delete "
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call+e.Key().Name)
}

// since returns the calls since the last time.
func (c *copied) since() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

// synced waits until everything was read.
func (c *copied) synced() {
	c.Helper()
	c.Eventually(func() error {
		if !c.HasSynced() {
			return errors.New("it has not synced")
		}
		return nil
	})
}

// has waits until a WorkloadEntry has an address; "" for none.
func (c *copied) has(name, address string) {
	c.Helper()
	c.Eventually(func() error {
		if got := addressOf(c.Get(keyOf(name))); got != address {
			return fmt.Errorf("%s has the address %q, want %q", name, got, address)
		}
		return nil
	})
}

// want compares the calls since the last time, without their order.
func (c *copied) want(want ...string) {
	c.Helper()
	got := c.since()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		c.Errorf("handlers were called for %q, want %q", got, want)
	}
}

var discard = slog.New(slog.DiscardHandler)

func keyOf(name string) config.Key {
	return config.Key{Kind: config.WorkloadEntry, Namespace: "shop", Name: name}
}

func addressOf(doc *config.Config) string {
	if doc == nil {
		return ""
	}
	return doc.Spec.(interface{ GetAddress() string }).GetAddress()
}

// read reads one document.
func read(t testing.TB, text string) *config.Config {
	t.Helper()
	documents, broken := config.Read("test.yaml", []byte(text))
	if broken != nil || len(documents) != 1 || documents[0].Config == nil {
		t.Fatal(broken, documents)
	}
	return documents[0].Config
}

// entry is a WorkloadEntry in the namespace shop.
func entry(t testing.TB, name, address string) *config.Config {
	t.Helper()
	return read(t, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, namespace: shop}\nspec: {address: %s}\n", name, address))
}

// write creates a document, or replaces it.
func write(t testing.TB, c *etcd.Client, doc *config.Config) {
	t.Helper()
	ctx := context.Background()
	_, err := c.Create(ctx, doc)
	if errors.Is(err, config.ErrExists) {
		old, _, readErr := c.Read(ctx, doc.Meta.Key)
		if readErr != nil || old == nil {
			t.Fatal(readErr)
		}
		next := *doc
		next.ResourceVersion = old.ResourceVersion
		_, err = c.Update(ctx, &next)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// line is a connection between a copy and etcd that can be cut.
type line struct {
	addr string
	to   string
	lis  net.Listener

	mu    sync.Mutex
	cut   bool // nothing passes, and nothing ends, as in a partition
	heal  chan struct{}
	conns []net.Conn
}

// newLine listens for connections to an address.
func newLine(r *rig.Rig, to string) *line {
	r.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	r.Check(err)
	l := &line{addr: lis.Addr().String(), to: to, lis: lis, heal: make(chan struct{})}
	close(l.heal)
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go l.join(conn)
		}
	}()
	r.Cleanup(func() {
		_ = lis.Close()
		l.repair()
		l.reset()
	})
	return l
}

func (l *line) join(conn net.Conn) {
	<-l.whole()
	other, err := net.Dial("tcp", l.to)
	if err != nil {
		_ = conn.Close()
		return
	}
	l.mu.Lock()
	l.conns = append(l.conns, conn, other)
	l.mu.Unlock()
	go l.copy(conn, other)
	l.copy(other, conn)
}

func (l *line) copy(to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err == nil || n > 0 {
			<-l.whole()
			if _, err = to.Write(b[:n]); err == nil {
				continue
			}
		}
		_ = to.Close()
		if !errors.Is(err, io.EOF) {
			_ = from.Close()
		}
		return
	}
}

// whole returns a channel that is closed while the line is not cut.
func (l *line) whole() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heal
}

// partition lets nothing pass until repair.
func (l *line) partition() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.cut, l.heal = true, make(chan struct{})
	}
}

func (l *line) repair() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		l.cut = false
		close(l.heal)
	}
}

// reset ends all connections.
func (l *line) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

// tlsFiles are files of a certificate.
type tlsFiles struct{ ca, cert, key string }

func (s *store) file(name, content string) string {
	s.Helper()
	path := filepath.Join(s.Dir, name)
	s.Check(os.WriteFile(path, []byte(content), 0o600))
	return path
}
