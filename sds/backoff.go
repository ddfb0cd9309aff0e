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
	// urgentPause bounds the pause while there is no valid certificate.
	urgentPause = 10 * time.Second
	// permanentPause is the least pause after an error that a retry is unlikely to change.
	permanentPause = 5 * time.Second
)

// backoff returns the pause before the next attempt: a random duration up to a bound that doubles with each
// failure ("full jitter"), so that the pods of a fleet do not retry together, and is at most 5 min or a tenth
// of the remaining validity of the certificate in use. left is 0 or less without a valid certificate.
func backoff(failures int, left time.Duration, permanent bool) time.Duration {
	most := urgentPause
	if left > 0 {
		most = min(maxPause, max(left/10, firstPause))
	}
	bound := most
	if failures < 20 { // a larger shift could overflow, and would exceed every bound
		bound = min(most, firstPause<<failures)
	}
	pause := time.Duration(rand.Int64N(int64(bound)) + 1)
	if permanent {
		pause += permanentPause
	}
	return max(pause, firstPause/10)
}

// isPermanent reports whether an early retry is unlikely to change the result.
func isPermanent(r pki.Reason) bool { return r == istio.Refused || r == istio.Unauthenticated }
