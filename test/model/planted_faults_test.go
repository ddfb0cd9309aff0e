package model

import "testing"

// fault is something that the glue does wrong on purpose.
type fault int

const (
	noFault       fault = iota
	dropRemovals        // the cache never hears that something is gone
	dropUpdates         // nor of one of several changes
	removeOnLoss        // the loss of the control plane removes a route
	forgetOnLoss        // and all clusters
	answerAcks          // an ACK is answered
	sendOld             // what was current before is sent
	answerEmpty         // a wildcard is answered before anything is known
	ackTwice            // the control plane is told twice
	dropVerdicts        // or never
	nackUnasked         // or that somebody refused, and nobody did
	askForever          // names are asked for again as soon as they come
	ackBeforeDisk       // what is being written counts as written
	endsEarly           // a fallback ends after a minute
	freezes             // during a fallback nothing changes
	loseDisk            // an agent that is killed loses what is on disk
	forgetTrials        // after a restart nothing becomes stable that was ACKed before it
)

// TestTheModelFindsPlantedFaults shows that each invariant can fail.
func TestTheModelFindsPlantedFaults(t *testing.T) {
	const enough = 2000
	for name, row := range map[string]struct {
		fault     fault
		invariant int
		draw      func(seed uint64) *sequence
	}{
		"removals are dropped":                             {dropRemovals, 1, newSequence},
		"changes are dropped":                              {dropUpdates, 1, newSequence},
		"a route is removed when the upstream is lost":     {removeOnLoss, 2, newSequence},
		"clusters are removed when the upstream is lost":   {forgetOnLoss, 2, newSequence},
		"an ACK is answered":                               {answerAcks, 3, newSequence},
		"an old version is sent":                           {sendOld, 4, newSequence},
		"a wildcard of which nothing is known is answered": {answerEmpty, 5, newSequence},
		"a response is ACKed twice":                        {ackTwice, 6, newSequence},
		"a response is not answered":                       {dropVerdicts, 6, newSequence},
		"a response is refused without a reason":           {nackUnasked, 6, newSequence},
		"names are asked for without end":                  {askForever, 7, newSequence},
		"an ACK does not wait for the disk":                {ackBeforeDisk, 10, withDisk},
		"what was ACKed is lost when the agent is killed":  {loseDisk, 9, withRestarts},
		"a restart ends a trial for ever":                  {forgetTrials, 11, withCrashes},
		"a fallback ends after a minute":                   {endsEarly, 11, withCrashes},
		"a fallback freezes everything":                    {freezes, 11, withCrashes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(enough) {
				w := play(t, row.draw(seed), row.fault, overlooked, false)
				if w.violation == nil {
					continue
				}
				if w.violation.invariant == row.invariant {
					t.Logf("sequence %d: %s", seed, w.violation)
					return
				}
			}
			t.Errorf("not found in %d sequences", enough)
		})
	}
}
