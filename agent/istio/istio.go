// Package istio lets the agent stand in for Istio's pilot-agent in a pod that istiod's webhook has changed.
//
// CheckResource, for the sources of the agent, rejects Wasm modules that pilot-agent would download. It may be
// called concurrently.
package istio
