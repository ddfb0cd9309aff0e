package session

import (
	"fmt"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// conversations is the number of random conversations of TestRandomConversationsKeepTheInvariants,
// half of them in each form.
const conversations = 100_000

// TestRandomConversationsKeepTheInvariants plays random conversations against the model of
// FuzzConversation: a correct client and a state that changes, with NACKs, stale nonces,
// disconnects and reconnects. HOLDFAST_SEED selects others; a failure prints its seed.
func TestRandomConversationsKeepTheInvariants(t *testing.T) {
	base := uint64(1)
	if s := os.Getenv("HOLDFAST_SEED"); s != "" {
		var err error
		if base, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	n := conversations
	if testing.Short() {
		n /= 20
	}
	t.Logf("%d conversations from HOLDFAST_SEED=%d", n, base)
	for _, form := range []xds.Form{xds.SotW, xds.Delta} {
		t.Run(form.String(), func(t *testing.T) {
			t.Parallel()
			for i := range n / 2 {
				seed := base<<32 + uint64(i)
				if !playRandom(t, form, seed) {
					return
				}
			}
		})
	}
}

// playRandom plays the conversation of one seed and reports whether every check passed.
func playRandom(t *testing.T, form xds.Form, seed uint64) bool {
	random := rand.New(rand.NewPCG(seed, uint64(form)))
	fz := newFuzzTalk(t, form)
	defer func() {
		if t.Failed() {
			fmt.Fprintf(os.Stderr, "the conversation of seed %d in %s did not hold\n", seed, form)
		}
	}()
	for range 10 + random.IntN(40) {
		fz.step(byte(random.Uint32()), byte(random.Uint32()))
		fz.noteGone()
	}
	fz.finish()
	return !t.Failed()
}
