// Package session implements the client side of one ADS stream as a pure state machine. Its
// inputs are responses, changes of the subscription, the ACKs and NACKs of the clients, and the
// time. Its outputs are updates of the state and requests. It has no goroutine, no clock, no lock
// and does no I/O.
//
// SotW and Delta are two wire forms of the same machine. Reading resources, ACKs and NACKs, their
// timeouts and the order of types are the same code. The forms differ in how they express a
// subscription and the absence of a resource.
//
// A Session is not safe for concurrent use.
package session
