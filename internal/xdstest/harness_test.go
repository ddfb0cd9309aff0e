package xdstest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// conversation is a control plane and a client inside a synctest bubble.
type conversation struct {
	*testing.T
	protocol xdstest.Protocol
	cp       *xdstest.ControlPlane
	client   *xdstest.Client
	pipe     *xdstest.Pipe
}

// converse runs a test of both ends, connected, inside a bubble.
func converse(t *testing.T, server xdstest.Config, client xdstest.ClientConfig, test func(*conversation)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		pipe := &xdstest.Pipe{}
		cp := xdstest.New(server)
		cp.Serve(pipe.Listen())
		defer cp.Stop()
		conn, err := pipe.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c := xdstest.NewClient(conn, client)
		defer c.Close()
		if err := c.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		test(&conversation{T: t, protocol: client.Protocol, cp: cp, client: c, pipe: pipe})
	})
}

// inBoth runs a test in SotW and in Delta.
func inBoth(t *testing.T, test func(*conversation)) {
	t.Helper()
	for _, p := range xdstest.Protocols() {
		t.Run(string(p), func(t *testing.T) {
			converse(t, xdstest.Config{}, xdstest.ClientConfig{Protocol: p}, test)
		})
	}
}

// requests settles the bubble and compares what was asked since the event of
// index from, without opened and closed.
func (c *conversation) requests(from int, want ...string) {
	c.Helper()
	synctest.Wait()
	var got []string
	for _, e := range c.cp.Events()[from:] {
		if e.Kind != xdstest.Opened && e.Kind != xdstest.Closed {
			got = append(got, e.String())
		}
	}
	c.lines("requests", got, want)
}

// answers settles the bubble and compares what the client got since answer from.
func (c *conversation) answers(from int, want ...string) {
	c.Helper()
	synctest.Wait()
	var got []string
	for _, r := range c.client.Responses()[from:] {
		got = append(got, r.String())
	}
	c.lines("answers", got, want)
}

func (c *conversation) lines(what string, got, want []string) {
	c.Helper()
	if !slices.Equal(got, want) {
		c.Fatalf("%s:\ngot  %q\nwant %q", what, got, want)
	}
}

// holds settles the bubble and compares the names that the client has.
func (c *conversation) holds(typeURL string, want ...string) {
	c.Helper()
	synctest.Wait()
	if got := c.client.Names(typeURL); !slices.Equal(got, want) {
		c.Fatalf("client holds %q, want %q", got, want)
	}
}

// versions compares what a Delta client says on its next stream.
func (c *conversation) versions(typeURL string, want map[string]string) {
	c.Helper()
	if got := c.client.Versions(typeURL); !maps.Equal(got, want) {
		c.Fatalf("versions %v, want %v", got, want)
	}
}

func (c *conversation) reconnect() {
	c.Helper()
	if err := c.client.Reconnect(c.Context()); err != nil {
		c.Fatal(err)
	}
	synctest.Wait()
}

// ended is a context that ends at once, to show what does not happen.
func ended() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("waited enough"))
	return ctx
}
