// Package sidecar simulates the xDS client of a sidecar's Envoy, for measurements of a control plane.
//
// A Client has a gRPC stream of its own, subscribes as Envoy does (to clusters and listeners, to the
// endpoints of each outbound cluster, and to the routes of the shared HTTP listener), and ACKs everything.
// It does not NACK, and sends no traffic. What arrives is passed to an Observer. A Client is used by one
// goroutine; Ready may be called by several.
package sidecar

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// The types that a sidecar subscribes to, as people call them.
const (
	CDS  = "CDS"
	EDS  = "EDS"
	LDS  = "LDS"
	RDS  = "RDS"
	VHDS = "VHDS"
)

const typePrefix = "type.googleapis.com/envoy.config."

var shorts = map[string]string{
	typePrefix + "cluster.v3.Cluster":                CDS,
	typePrefix + "endpoint.v3.ClusterLoadAssignment": EDS,
	typePrefix + "listener.v3.Listener":              LDS,
	typePrefix + "route.v3.RouteConfiguration":       RDS,
	typePrefix + "route.v3.VirtualHost":              VHDS,
}

// URL returns the type URL of a type.
func URL(short string) string {
	for url, s := range shorts {
		if s == short {
			return url
		}
	}
	panic(short)
}

// sharedRoutes is the name of the routes of sharedListener, which all HTTP services of port 80 share.
const (
	sharedListener = "0.0.0.0_80"
	sharedRoutes   = "80"
)

// Observer is told what a Client receives, by the goroutine of the Client.
type Observer interface {
	// Resource is called for each resource. An error ends the stream.
	Resource(short string, r Resource) error
	// Removed is called for each resource that the control plane removes (Delta).
	Removed(short, name string)
	// Answered is called when the ACK of a response has been sent.
	Answered(short string, size int)
}

// Client is a simulated sidecar.
type Client struct {
	Node     *corev3.Node
	Observer Observer
	// SotW selects the state-of-the-world form, without which the Client speaks Delta. VirtualHosts makes it
	// subscribe to virtual hosts (Delta only).
	SotW, VirtualHosts bool
	// Held returns the names and versions that the sidecar has of a type, which a new Delta stream tells the
	// control plane; nil for a sidecar that has nothing.
	Held func(short string) map[string]string
	// Clusters are the outbound clusters of a Client that only counts: it subscribes to their endpoints without
	// reading resources. Nil: it reads them.
	Clusters []string

	eds, rds   []string
	subscribed map[string]struct{}
	// newEDS and newRDS are the names that the response at hand adds.
	newEDS, newRDS []string
}

// Subscriptions returns the number of clusters to whose endpoints the client subscribes.
func (c *Client) Subscriptions() int { return len(c.eds) }

// Dial returns a connection for clients.
func Dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.ForceCodecV2(codec{})))
}

// Run opens a stream on a connection of Dial, and serves it until it ends.
func (c *Client) Run(ctx context.Context, conn grpc.ClientConnInterface) error {
	c.eds, c.rds, c.subscribed = nil, nil, make(map[string]struct{})
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if c.SotW {
		return c.sotw(ctx, client)
	}
	return c.delta(ctx, client)
}

func (c *Client) delta(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) error {
	stream, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := c.open(stream); err != nil {
		return err
	}
	sentHosts := false
	counts := c.Clusters != nil
	for {
		r := received{}
		if !counts {
			r.client = c
		}
		if err := stream.RecvMsg(&r); err != nil {
			return err
		}
		short := shorts[r.typeURL]
		if counts && len(c.eds) == 0 && short == CDS {
			c.eds, c.newEDS = c.Clusters, c.Clusters
		}
		if counts && len(c.rds) == 0 && short == LDS {
			c.rds, c.newRDS = []string{sharedRoutes}, []string{sharedRoutes}
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce}); err != nil {
			return err
		}
		c.Observer.Answered(short, r.size)
		if len(c.newEDS) > 0 {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: URL(EDS), ResourceNamesSubscribe: c.newEDS})
			c.newEDS = nil
		}
		if err == nil && len(c.newRDS) > 0 {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: URL(RDS), ResourceNamesSubscribe: c.newRDS})
			c.newRDS = nil
		}
		if err == nil && short == RDS && c.VirtualHosts && !sentHosts {
			sentHosts = true
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: URL(VHDS)})
		}
		if err != nil {
			return err
		}
	}
}

// open sends the first requests of a Delta stream: with what the sidecar has, all types at once, as Envoy does
// when it connects again.
func (c *Client) open(stream grpc.ClientStream) error {
	node := c.Node
	for _, short := range []string{CDS, EDS, LDS, RDS} {
		req := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: URL(short)}
		if c.Held != nil {
			req.InitialResourceVersions = c.Held(short)
		}
		if short == EDS || short == RDS {
			if len(req.InitialResourceVersions) == 0 {
				continue // it is subscribed to once a cluster or a listener names it
			}
			for name := range req.InitialResourceVersions {
				c.subscribed[name] = struct{}{}
				req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, name)
			}
			if short == EDS {
				c.eds = req.ResourceNamesSubscribe
			} else {
				c.rds = req.ResourceNamesSubscribe
			}
		}
		if err := stream.SendMsg(req); err != nil {
			return err
		}
		node = nil
	}
	return nil
}

func (c *Client) sotw(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) error {
	stream, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	node := c.Node
	for _, short := range []string{CDS, LDS} {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: URL(short)}); err != nil {
			return err
		}
		node = nil
	}
	last := make(map[string]*discoveryv3.DiscoveryRequest) // what was sent last, by type
	ask := func(short string, names []string) error {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: URL(short), ResourceNames: slices.Clone(names)}
		if before := last[short]; before != nil {
			req.VersionInfo, req.ResponseNonce = before.VersionInfo, before.ResponseNonce
		}
		return stream.Send(req)
	}
	for {
		r := received{client: c}
		if err := stream.RecvMsg(&r); err != nil {
			return err
		}
		short := shorts[r.typeURL]
		ack := &discoveryv3.DiscoveryRequest{TypeUrl: r.typeURL, VersionInfo: r.version, ResponseNonce: r.nonce}
		last[short] = ack
		switch short {
		case EDS:
			ack.ResourceNames = slices.Clone(c.eds)
		case RDS:
			ack.ResourceNames = slices.Clone(c.rds)
		}
		if err := stream.Send(ack); err != nil {
			return err
		}
		c.Observer.Answered(short, r.size)
		if len(c.newEDS) > 0 {
			c.newEDS, err = nil, ask(EDS, c.eds)
		}
		if err == nil && len(c.newRDS) > 0 {
			c.newRDS, err = nil, ask(RDS, c.rds)
		}
		if err != nil {
			return err
		}
	}
}

// resource takes in a resource, and notes the names of endpoints and routes that it adds.
func (c *Client) resource(short string, r Resource) error {
	if short == CDS || short == LDS {
		if _, has := c.subscribed[string(r.Name)]; !has {
			switch name := string(r.Name); {
			case short == CDS && strings.HasPrefix(name, "outbound|"):
				c.subscribed[name] = struct{}{}
				c.eds, c.newEDS = append(c.eds, name), append(c.newEDS, name)
			case short == LDS && name == sharedListener:
				if _, has := c.subscribed[sharedRoutes]; !has {
					c.subscribed[sharedRoutes] = struct{}{}
					c.rds, c.newRDS = append(c.rds, sharedRoutes), append(c.newRDS, sharedRoutes)
				}
			}
		}
	}
	return c.Observer.Resource(short, r)
}

// Ready reports whether a control plane answers a stream without a node with anything but that it is
// not ready or not there.
func Ready(ctx context.Context, addr string) bool {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return false
	}
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: URL(CDS)}) // the answer tells
	_, err = stream.Recv()
	return status.Code(err) != codes.Unavailable && !strings.Contains(fmt.Sprint(err), "not ready")
}
