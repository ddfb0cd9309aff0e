// Package istio plays holdfast as Istio's sidecar in a real Kubernetes of one node, with a real istiod that injects it by
// deploy/istio, beside pilot-agent.
package istio
