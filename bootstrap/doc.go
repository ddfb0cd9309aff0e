// Package bootstrap builds, validates and writes the bootstrap file that makes an Envoy take its whole configuration
// from the agent, and reads a node identity back out of any Envoy bootstrap.
//
// It promises that equal configurations give equal bytes, that what Build returns passes Envoy's own field rules, and
// that text from outside (a node id, metadata) stays the string that it was: nothing is assembled from text. It writes
// no file but the one it is told to, and that one by atomic rename. It neither talks to an Envoy nor to a control plane,
// and it knows nothing of the agent that will listen on the socket.
//
// All functions may be called concurrently; none keeps a reference to its arguments.
package bootstrap
