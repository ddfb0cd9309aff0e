// Package session implements the server side of one xDS stream as a pure state machine. Its
// inputs are the client's requests, changes of the state, and the time. Its outputs are
// responses, changes of the subscription, and the client's ACKs and NACKs. It has no goroutine,
// no clock, no lock and does no I/O, so that a conversation with a client is a transcript that
// can be written down, tested and fuzzed.
//
// A Session remembers what it must send to its client as sets of names, never as a queue of
// messages. Next builds a response from the state as it is when Next is called, so that a slow
// client skips intermediate versions and gets the newest one (design.md section 1).
//
// SotW and Delta are two wire forms of the same machine. They differ in which part of the
// subscription a response covers, in how a removal is expressed, and in how a request names its
// subscription. Ordering, warming, ACKs and NACKs, and the choice of the version to send are the
// same code.
//
// A Session is not safe for concurrent use.
package session
