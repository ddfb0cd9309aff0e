package service

import (
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

// Health is the health of an endpoint as its registry says it.
type Health uint8

const (
	Healthy Health = iota
	UnHealthy
	Draining
	// Terminating endpoints are not sent.
	Terminating
)

// Endpoint is an address at which instances of a service are reached. It is immutable.
type Endpoint struct {
	// Address is an IP address, a DNS name, or the path of a Unix socket ("unix:///path").
	Address string
	// Port is the port of the address; PortName is the name of the service's port that it serves.
	Port     uint32
	PortName string
	Labels   map[string]string
	Locality string // region/zone/subzone
	Network  string
	Weight   uint32 // 0 is 1
	// ServiceAccount is the SPIFFE id of the endpoint, "" for none.
	ServiceAccount string
	Namespace      string
	Workload       string // the name of the workload, for messages
	Health         Health
	// HasSidecar says that the endpoint accepts mesh mTLS.
	HasSidecar bool
	// Encoded is the endpoint as Envoy gets it.
	Encoded *endpointv3.LbEndpoint
}
