// Package istio holds holdfast-mesh against istiod: the same documents go to both, a real Envoy
// stands behind each, and the same requests must have the same outcome. README.md says how to run it
// and how to add a case. It also holds the bootstrap of an injected proxy against that of pilot-agent.
//
// It is a module of its own, and it runs bin/holdfast-mesh and bin/holdfast as processes: istiod and holdfast need
// different versions of the Kubernetes libraries.
package istio
