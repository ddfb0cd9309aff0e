// Package xdstest is the two ends of an xDS conversation, for tests: a control
// plane and a client that do what a script tells them, and by themselves what
// the protocol asks of them.
//
// ControlPlane holds a desired state and serves it over ADS, SotW and Delta,
// until the script tells it to hold back, to cut its streams, to refuse them or
// to send an answer of the script's own. Client keeps the state that an Envoy
// would have after the answers that it got. Both keep a log of what the other
// side said, which a test waits for and compares. Beside them are messages for
// tests of their encoding, and the steps that the input of a fuzz target spells out.
//
// Nothing here waits for real time, keeps package state or touches the network
// by itself, so all of it works inside a testing/synctest bubble over a Pipe,
// and in an end-to-end test over real sockets. The resources that are built here
// are ones that a real Envoy accepts, where they do not say otherwise. All methods
// may be called concurrently.
package xdstest
