// Package controlplane plays holdfast against go-control-plane: its gRPC server, and its snapshot, linear and mux caches,
// with real Envoys behind the agent and beside it.
package controlplane
