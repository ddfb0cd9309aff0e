package etcd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// binary is etcd, and tools is the directory in which it is beside etcdctl and etcdutl.
var binary, tools string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-etcd-")
	if err == nil {
		tools, binary = dir, filepath.Join(dir, "etcd")
		build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./member", "go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdutl/v3")
		build.Stderr = os.Stderr
		if err = build.Run(); err == nil {
			err = os.Rename(filepath.Join(dir, "member"), binary)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd cannot be built:", err)
		os.Exit(1)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // they wait more than they compute
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// cluster is an etcd of three members, each a process.
type cluster struct {
	*rig.Rig
	members []*member
}

type member struct {
	name, client, peer string
	args               []string
	process            *testbed.Process
}

// newCluster starts three members with flags, and waits for their leader.
func newCluster(t *testing.T, flags ...string) *cluster {
	c := &cluster{Rig: rig.New(t)}
	var initial []string
	for i := range 3 {
		m := &member{name: "m" + strconv.Itoa(i), client: "http://" + c.FreeAddr(), peer: "http://" + c.FreeAddr()}
		initial = append(initial, m.name+"="+m.peer)
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		m.args = append([]string{binary, "--name", m.name, "--data-dir", c.Path(m.name), "--listen-client-urls", m.client, "--advertise-client-urls", m.client,
			"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer, "--initial-cluster", strings.Join(initial, ","),
			"--heartbeat-interval", "100", "--election-timeout", "1000", "--log-level", "panic"}, flags...)
		c.start(m)
	}
	c.leader()
	return c
}

func (c *cluster) start(m *member) {
	c.Helper()
	p, err := testbed.Start(m.name, c.Path(m.name+".log"), m.args...)
	c.Check(err)
	m.process = p
	c.Cleanup(p.Kill) // what it keeps is of no use to anybody
}

func (c *cluster) urls() (urls []string) {
	for _, m := range c.members {
		urls = append(urls, m.client)
	}
	return urls
}

// leader waits until there is one, and returns it.
func (c *cluster) leader() (leader *member) {
	c.Helper()
	c.Eventually(func() error {
		for _, m := range c.members {
			raw, err := clientv3.New(clientv3.Config{Endpoints: []string{m.client}, DialTimeout: time.Second})
			if err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := raw.Status(ctx, m.client)
			cancel()
			_ = raw.Close()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				leader = m
				return nil
			}
		}
		return errors.New("no leader")
	})
	return leader
}

// open returns a client of all members.
func (c *cluster) open() *etcd.Client {
	c.Helper()
	client, err := etcd.Open(etcd.Options{Endpoints: c.urls(), Author: "alice@desk"})
	c.Check(err)
	c.Cleanup(client.Close)
	return client
}

// writes writes until it succeeds.
func (c *cluster) writes(client *etcd.Client, name, address string) {
	c.Helper()
	doc := entry(c, name, address)
	c.Eventually(func() error { return client.Import(context.Background(), doc) })
}

func (c *cluster) kill(m *member, s syscall.Signal) {
	c.Helper()
	c.Check(m.process.Signal(s))
}

// nothingWasTaken fails the test if a handler was called for a deletion.
func (c *copied) nothingWasTaken() {
	c.Helper()
	for _, call := range c.since() {
		if strings.HasPrefix(call, "delete") {
			c.Errorf("%s: a member that is lost takes a document away", call)
		}
	}
}

func TestACopySurvivesTheLossOfAnyMember(t *testing.T) {
	for _, tc := range []struct {
		name   string
		signal syscall.Signal
	}{{"killed", syscall.SIGKILL}, {"paused", syscall.SIGSTOP}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			client := c.open()
			c.writes(client, "a", "10.0.0.1")
			source := follow(c.Rig, client, "")
			source.has("a", "10.0.0.1")
			for round := range 3 { // the leader each time, so that all clients lose theirs at least once
				leader := c.leader()
				c.kill(leader, tc.signal)
				address := fmt.Sprintf("10.0.1.%d", round)
				c.writes(client, "a", address)
				source.has("a", address)
				if tc.signal == syscall.SIGSTOP {
					c.kill(leader, syscall.SIGCONT)
				} else {
					c.start(leader)
				}
				c.leader()
			}
			source.nothingWasTaken()
			c.Eventually(func() error { return source.State().Away })
		})
	}
}

func TestALostQuorumChangesNothingUntilItIsRegained(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	client := c.open()
	c.writes(client, "a", "10.0.0.1")
	source := follow(c.Rig, client, "")
	source.has("a", "10.0.0.1")
	c.kill(c.members[0], syscall.SIGKILL)
	c.kill(c.members[1], syscall.SIGKILL)
	c.Eventually(func() error {
		if source.State().Away == nil {
			return errors.New("it is not noticed")
		}
		return nil
	})
	_, err := client.Create(t.Context(), entry(t, "b", "10.0.0.1"))
	if err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("a write without a quorum: %v", err)
	}
	t.Log(err)
	source.has("a", "10.0.0.1")
	c.start(c.members[0])
	c.writes(client, "c", "10.0.0.1")
	source.has("c", "10.0.0.1")
	source.nothingWasTaken()
}

// A member whose disk is full ends, as etcd does; the others go on.
func TestAFullDiskOfAMemberHarmsNobody(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	client := c.open()
	c.writes(client, "a", "10.0.0.1")
	source := follow(c.Rig, client, "")
	source.has("a", "10.0.0.1")
	full := c.leader()
	pid := full.process.PID()
	// No file of it can grow from now on: what a full disk is for a process.
	c.Check(unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1, Max: 1}, nil))
	for n := range 20 {
		c.writes(client, "a", fmt.Sprintf("10.0.1.%d", n))
	}
	source.has("a", "10.0.1.19")
	source.nothingWasTaken()
}

// A full database takes no writes until somebody has cleared it, and is read as before.
func TestAFullDatabaseSaysWhatToDo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--quota-backend-bytes", strconv.Itoa(4<<20))
	client := c.open()
	c.writes(client, "a", "10.0.0.1")
	source := follow(c.Rig, client, "")
	source.has("a", "10.0.0.1")
	large := *entry(t, "large", "10.0.0.1")
	large.Annotations = map[string]string{"text": strings.Repeat("x", 500<<10)}
	var err error
	for range 40 {
		if err = client.Import(t.Context(), &large); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "defragment") {
		t.Fatalf("a full database: %v", err)
	}
	fresh := follow(c.Rig, c.open(), "")
	fresh.has("a", "10.0.0.1")
	if state := source.State(); state.Away != nil {
		t.Errorf("it can still be read: %+v", state)
	}
	c.recover()
	c.writes(client, "a", "10.0.0.2")
	source.has("a", "10.0.0.2")
	fresh.has("a", "10.0.0.2")
	if source.Get(config.Key{Kind: config.WorkloadEntry, Namespace: "shop", Name: "large"}) == nil {
		t.Error("what was written before is gone")
	}
}

// recover compacts and defragments the database of every member, and disarms the alarm.
func (c *cluster) recover() {
	c.Helper()
	raw, err := clientv3.New(clientv3.Config{Endpoints: c.urls(), DialTimeout: rig.Limit})
	c.Check(err)
	defer func() { _ = raw.Close() }()
	ctx := c.Context()
	resp, err := raw.Get(ctx, "none")
	c.Check(err)
	_, err = raw.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
	c.Check(err)
	for _, url := range c.urls() {
		_, err := raw.Defragment(ctx, url)
		c.Check(err)
	}
	_, err = raw.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	c.Check(err)
}
