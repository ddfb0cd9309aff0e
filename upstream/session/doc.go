// Package session is the client side of one ADS stream as a pure state machine:
// responses, changes of interest, verdicts and the time go in; updates of the
// state and requests come out. It has no goroutine, no clock, no lock and does
// no I/O.
//
// SotW and Delta are two wire forms of one machine: reading resources, verdicts,
// their time limits and the order of types are the same code; how a subscription
// and an absence are said differs.
//
// A Session is not safe for concurrent use.
package session
