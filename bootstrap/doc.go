// Package bootstrap builds, modifies, validates and writes the bootstrap file of an Envoy that takes its whole
// configuration from the agent, and reads the node identity from any Envoy bootstrap.
//
// Build builds a bootstrap from a Config, and Identity builds the node in it from what is known about a pod; Complete and
// Apply add templates and overlays; Check and CheckWithEnvoy validate the result; Encode and Write write it to disk.
//
// It promises that equal configurations give equal bytes, that the result of Build passes Envoy's own field rules, and that
// text from outside (a node id, metadata, the name of a stat) cannot change the structure of the file: nothing is assembled
// from text. It writes only the requested file, by atomic rename, and the temporary file that CheckWithEnvoy passes to an
// Envoy; only that function runs one. It does not talk to a control plane, and does not check that an agent listens on the
// socket.
//
// All functions may be called concurrently; none retains its arguments.
package bootstrap
