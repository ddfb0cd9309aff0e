package sds

import (
	"math/rand/v2"
	"time"

	"github.com/holdfast-xds/holdfast/sds/istio"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Bounds of the pause after a failed attempt.
const (
	firstPause = time.Second
	maxPause   = 5 * time.Minute
	// urgentPause bounds it while there is no valid certificate at all.
	urgentPause = 10 * time.Second
	// refusedPause is the least after an answer that the next attempt will not
	// change, such as that the token is not valid.
	refusedPause = 5 * time.Second
)

// backoff returns the pause before the next attempt: anything up to a bound that
// doubles with each failure ("full jitter"), so that the pods of a fleet do not come
// back together. It grows to a tenth of what is left of the certificate in use, and
// to 5 min at most. left is 0 or less where there is none that is valid.
func backoff(failures int, left time.Duration, refused bool) time.Duration {
	most := urgentPause
	if left > 0 {
		most = min(maxPause, max(left/10, firstPause))
	}
	bound := most
	if failures < 20 { // further shifts would overflow, and are beyond any bound
		bound = min(most, firstPause<<failures)
	}
	pause := time.Duration(rand.Int64N(int64(bound)) + 1)
	if refused {
		pause += refusedPause
	}
	return max(pause, firstPause/10)
}

// refused reports whether an answer is one that trying again does not change soon.
func refused(r pki.Reason) bool { return r == istio.Refused || r == istio.Unauthenticated }
