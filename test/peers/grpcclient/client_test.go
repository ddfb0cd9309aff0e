package grpcclient

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	_ "google.golang.org/grpc/xds"
	"google.golang.org/grpc/xds/csds"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// targetVariable is the variable that makes this binary the client, and says what it calls; outVariable is the file where
// it writes how its RPCs ended.
const (
	targetVariable = "PEERS_GRPC_TARGET"
	outVariable    = "PEERS_GRPC_OUT"
	// csdsVariable is the Unix socket where grpc-go serves what its xDS client has (CSDS); unset for none.
	csdsVariable = "PEERS_GRPC_CSDS"
)

// An RPC begins every callInterval and may take callTimeout.
const (
	callInterval = 10 * time.Millisecond
	callTimeout  = 5 * time.Second
)

// TestMain is also the client: the test runs itself again, so that grpc-go reads its bootstrap as any program's does, from
// GRPC_XDS_BOOTSTRAP.
func TestMain(m *testing.M) {
	if target := os.Getenv(targetVariable); target != "" {
		if err := runClient(target, os.Getenv(outVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	// The tests wait most of their time for timers of gRPC and of the agent, so that there may be more than CPUs.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// call is what the client writes of an RPC, one a line.
type call struct {
	Begun, Ended time.Time
	// Peer is the address of the backend that has answered.
	Peer string
	// Err is empty if the RPC has succeeded.
	Err string
}

// runClient makes RPCs until SIGTERM. It writes how each ended to a file.
func runClient(target, file string) error {
	written, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = written.Close() }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if socket := os.Getenv(csdsVariable); socket != "" {
		end, err := serveCSDS(socket)
		if err != nil {
			return err
		}
		defer end()
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := healthgrpc.NewHealthClient(conn)
	var calls sync.WaitGroup
	defer calls.Wait()
	var mu sync.Mutex
	out := json.NewEncoder(written)
	tick := time.NewTicker(callInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		calls.Go(func() {
			c := one(client)
			mu.Lock()
			defer mu.Unlock()
			_ = out.Encode(c)
		})
	}
}

// serveCSDS serves grpc-go's CSDS on a socket.
func serveCSDS(socket string) (end func(), err error) {
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	own, err := csds.NewClientStatusDiscoveryServer()
	if err != nil {
		return nil, err
	}
	srv := grpc.NewServer()
	statusv3.RegisterClientStatusDiscoveryServiceServer(srv, own)
	go func() { _ = srv.Serve(lis) }() // it returns when it is stopped
	return func() { srv.Stop(); own.Close() }, nil
}

func one(client healthgrpc.HealthClient) call {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	c := call{Begun: time.Now()}
	var answered peer.Peer
	_, err := client.Check(ctx, &healthgrpc.HealthCheckRequest{}, grpc.Peer(&answered))
	c.Ended = time.Now()
	if err != nil {
		c.Err = err.Error()
	} else if answered.Addr != nil {
		c.Peer = answered.Addr.String()
	}
	return c
}

// client is a running client.
type client struct {
	*testbed.Process
	rig *rig.Rig
	out string
}

// startClient starts a client with a bootstrap.
func startClient(r *rig.Rig, name string, bootstrap []byte, environ ...string) *client {
	r.Helper()
	file := r.Path(name + ".bootstrap.json")
	r.Check(os.WriteFile(file, bootstrap, 0o600))
	self, err := os.Executable()
	r.Check(err)
	out := r.Path(name + ".calls")
	env := append([]string{"env", targetVariable + "=xds:///" + service, outVariable + "=" + out, "GRPC_XDS_BOOTSTRAP=" + file}, environ...)
	p := r.Start(name, append(env, self)...)
	r.Check(p.Wait(limit, func() error {
		_, err := os.Stat(out)
		return err
	}))
	return &client{rig: r, Process: p, out: out}
}

// calls returns the RPCs that have ended.
func (c *client) calls() (out []call) {
	c.rig.Helper()
	b, err := os.ReadFile(c.out)
	c.rig.Check(err)
	for line := range strings.Lines(string(b)) {
		var one call
		// The last line may not be whole yet.
		if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &one) == nil {
			out = append(out, one)
		}
	}
	return out
}

// reaches waits until RPCs that begin from now on are answered by a backend, and by that one only.
func (c *client) reaches(backend string) {
	c.rig.Helper()
	begun := time.Now()
	c.rig.Check(c.Wait(limit, func() error {
		time.Sleep(50 * time.Millisecond) // all is read each time
		calls := c.calls()
		last, good := call{}, 0
		for _, one := range calls {
			if one.Begun.Before(begun) {
				continue
			}
			if last = one; one.Err == "" && one.Peer == backend {
				good++
			} else {
				good = 0
			}
		}
		if good < 20 {
			return fmt.Errorf("of %d RPCs the last %d reached %s; the last one: %+v", len(calls), good, backend, last)
		}
		return nil
	}))
}

// finish ends the client and returns how its RPCs ended.
func (c *client) finish() []call {
	c.rig.Helper()
	c.rig.Check(c.Stop(2 * callTimeout))
	return c.calls()
}

// neverFailed ends the client and fails the test if an RPC has failed.
func (c *client) neverFailed() {
	c.rig.Helper()
	calls, failed := c.finish(), 0
	for _, one := range calls {
		if one.Err == "" {
			continue
		}
		if failed++; failed <= 5 {
			c.rig.Errorf("%s: an RPC at %s failed after %s: %s", c.Name, one.Begun.Format(time.StampMilli), one.Ended.Sub(one.Begun), one.Err)
		}
	}
	if failed > 0 || len(calls) == 0 {
		c.rig.Errorf("%s: %d of %d RPCs failed", c.Name, failed, len(calls))
	}
	c.rig.Logf("%s: %d of %d RPCs failed", c.Name, failed, len(calls))
}
