package xdstest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Responses returns every answer so far. The caller must not change it.
func (c *Client) Responses() []Received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clip(c.received)
}

// Of returns the answers of one type.
func (c *Client) Of(typeURL string) []Received {
	var of []Received
	for _, r := range c.Responses() {
		if r.Type == typeURL {
			of = append(of, r)
		}
	}
	return of
}

// Held returns what the client has of a type: name → resource.
func (c *Client) Held(typeURL string) map[string]*discoveryv3.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.types[typeURL]; v != nil {
		return maps.Clone(v.held)
	}
	return nil
}

// Names returns the names of what the client has of a type, sorted.
func (c *Client) Names(typeURL string) []string {
	return slices.Sorted(maps.Keys(c.Held(typeURL)))
}

// Versions returns what a Delta client says on its next stream: name → version
// of what it accepted.
func (c *Client) Versions(typeURL string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.types[typeURL]; v != nil {
		return maps.Clone(v.versions)
	}
	return nil
}

// Version returns the version_info that a SotW client accepted last.
func (c *Client) Version(typeURL string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.types[typeURL]; v != nil {
		return v.version
	}
	return ""
}

// Err returns why the newest stream ended, nil while it is open.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Wait blocks until the condition holds, which is asked again whenever anything
// happens here and may call any method. Its error, when ctx ends first, quotes
// the newest answers.
func (c *Client) Wait(ctx context.Context, until func() bool) error {
	if err := c.signal.wait(ctx, until); err != nil {
		return fmt.Errorf("xDS client: %w; newest answers:%s", err, tail(c.Responses()))
	}
	return nil
}
