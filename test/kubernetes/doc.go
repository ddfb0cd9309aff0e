// Package kubernetes plays the manifests of deploy/ in a real Kubernetes of one node (package cluster), under a load that
// counts: what happens to pods and nodes in production happens here, and no request may fail but those that nobody could
// have answered. Helm itself installs deploy/chart there, upgrades it, and takes it away.
//
// `make cluster-short` is the short form, which CI runs; `make cluster` plays every event with every shape.
package kubernetes
