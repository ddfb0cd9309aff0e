package xdstest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Responses returns all responses so far. The caller must not modify it.
func (c *Client) Responses() []Received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clip(c.received)
}

// Of returns the responses of one type.
func (c *Client) Of(typeURL string) []Received {
	var of []Received
	for _, r := range c.Responses() {
		if r.Type == typeURL {
			of = append(of, r)
		}
	}
	return of
}

// Held returns the client's resources of a type by name.
func (c *Client) Held(typeURL string) map[string]*discoveryv3.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.types[typeURL]; v != nil {
		return maps.Clone(v.resources)
	}
	return nil
}

// Names returns the sorted names of the client's resources of a type.
func (c *Client) Names(typeURL string) []string {
	return slices.Sorted(maps.Keys(c.Held(typeURL)))
}

// Versions returns the initial_resource_versions of a Delta client's next stream: the ACKed versions by
// name.
func (c *Client) Versions(typeURL string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.types[typeURL]; v != nil {
		return maps.Clone(v.versions)
	}
	return nil
}

// Version returns the version_info that a SotW client ACKed last.
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

// Wait blocks until the condition holds. It evaluates the condition again after each event of the
// client; the condition may call any method. If ctx ends first, the error quotes the last responses.
func (c *Client) Wait(ctx context.Context, until func() bool) error {
	if err := c.signal.wait(ctx, until); err != nil {
		return fmt.Errorf("xDS client: %w; newest answers:%s", err, tail(c.Responses()))
	}
	return nil
}
