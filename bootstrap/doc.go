// Package bootstrap builds, changes, validates and writes the bootstrap file that makes an Envoy take its whole
// configuration from the agent, and reads a node identity back out of any Envoy bootstrap.
//
// Build makes a bootstrap of a Config, Identity the node in it of what is known of a pod; Complete and Apply bring in
// templates and overlays; Check and CheckWithEnvoy judge the result; Encode and Write put it on disk.
//
// It promises that equal configurations give equal bytes, that what Build returns passes Envoy's own field rules, and
// that text from outside (a node id, metadata, the name of a stat) stays the string that it was: nothing is assembled from
// text. It writes no file but the one it is told to, and that one by atomic rename, and the temporary one that
// CheckWithEnvoy shows to an Envoy; that is the only function that runs one. It never talks to a control plane, and it
// knows nothing of the agent that will listen on the socket.
//
// All functions may be called concurrently; none keeps a reference to its arguments.
package bootstrap
