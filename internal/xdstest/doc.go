// Package xdstest contains both ends of an xDS stream for tests: a control plane and a client that
// follow a script, and otherwise behave as the protocol requires.
//
// ControlPlane has a desired state and serves it over ADS, in SotW and Delta, until the script lets it
// withhold responses, end or reject streams, or send a prepared response. Client has the resources that
// an Envoy would have after the responses that it received. Both record what the other side sent; a
// test waits for records and compares them. The package also builds messages for tests of codecs, and
// the steps that the input of a fuzz target describes.
//
// The package does not wait for real time, has no package state and does not open network connections
// by itself, so it works in a testing/synctest bubble over a Pipe, and in an end-to-end test over
// sockets. A real Envoy accepts the resources that it builds, unless documented otherwise. It promises
// nothing for use outside of tests. All methods may be called concurrently.
package xdstest
