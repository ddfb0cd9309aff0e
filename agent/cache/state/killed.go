package state

import "time"

// A client did not outlive what it was offered if it went without an answer within KilledWithin of the offer. That is offered again to no
// new process of its build, but for a cause, or after KilledFor.
const (
	KilledWithin = time.Minute
	KilledFor    = 24 * time.Hour
)
