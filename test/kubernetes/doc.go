// Package kubernetes plays the manifests of deploy/ in a real Kubernetes of one node (package cluster), under a load that
// counts: what happens to pods and nodes in production happens here, and no request may fail but those that nobody could
// have answered. Helm itself installs deploy/chart there, upgrades it, and takes it away.
//
// `make kubernetes-test` is the short form, which CI runs; `make kubernetes-test-all` plays every event with every shape.
// KUBERNETES_TEST=skip skips both, for a machine without root or cgroups.
package kubernetes
