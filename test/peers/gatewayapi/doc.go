// Package gatewayapi has the conformance suite of the Kubernetes Gateway API, as its authors wrote it, against holdfast-mesh, which
// is given the suite's objects as documents, and Envoys behind agents. It is a module of its own, because the main module must not
// have the client of Kubernetes that the suite is written with.
package gatewayapi
