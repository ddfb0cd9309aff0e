// Package grpcclient plays holdfast between two programs of others: a proxyless gRPC client, which is grpc-go with its own
// xDS client in a process of its own, and go-control-plane.
package grpcclient
