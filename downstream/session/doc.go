// Package session is the server side of one xDS stream as a pure state machine:
// requests, changes of the state and the time go in; responses, changes of the
// subscription and verdicts come out. It has no goroutine, no clock, no lock and
// does no I/O, so a conversation with a client is a transcript that can be
// written down, tested and fuzzed.
//
// A Session holds what it owes its client as sets of names, never as a queue of
// messages: Next builds a response from the state as it is at that moment, so a
// slow client skips what was overtaken and gets the newest (design.md section 1).
//
// SotW and Delta are two wire forms of one machine. What differs is which part
// of the subscription a response covers, how absence is said, and how a request
// names its subscription; ordering, warming, verdicts and the choice of version
// are the same code.
//
// A Session is not safe for concurrent use.
package session
