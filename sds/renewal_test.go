package sds

import (
	"crypto"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Over 30 days the CA fails, hangs and returns invalid certificates for hours at a time. A
// valid certificate is published at each moment: half of the lifetime is enough to recover.
func TestNoValidCertificateIsWithheldWhateverTheCADoes(t *testing.T) {
	modes := append([]string{"stalls", "fails", "refuses"}, invalidAnswers...)
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			signing(t, nil, func(r *rig) {
				random := rand.New(rand.NewPCG(seed, 6))
				r.checkCertificate()
				bad, good := 0, 0
				for until := r.now().Add(30 * 24 * time.Hour); r.now().Before(until); {
					well, not := 1+random.IntN(3), 1+random.IntN(9)
					good, bad = good+well, bad+not
					for hour := range well + not {
						r.ca.setMode("")
						if hour >= well {
							r.ca.setMode(modes[random.IntN(len(modes))])
						}
						for range 6 {
							r.wait(10 * time.Minute)
							r.checkCertificate()
						}
					}
				}
				s := r.status()
				if s.Issued < 45 || s.Issued > 70 {
					t.Errorf("%d certificates of 24 hours in 30 days, renewed at half of that or when the CA is well again", s.Issued)
				}
				failed := uint64(0)
				for _, n := range s.Failed {
					failed += n
				}
				t.Logf("%d h well, %d h not: %d issued, %d attempts failed: %v", good, bad, s.Issued, failed, s.Failed)
				if failed == 0 || len(s.Failed) < 4 {
					t.Errorf("what the CA did was not noticed: %v", s.Failed)
				}
			})
		})
	}
}

// A client that does not verify would accept these certificates.
func TestALieIsNeverTaken(t *testing.T) {
	want := map[string]pki.Reason{
		"wrong key": pki.WrongKey, "wrong name": pki.WrongName, "expired": pki.Expired, "root missing": pki.Untrusted,
		"oversized": pki.Oversized, "an authority": pki.WrongKey, "empty": pki.Malformed, "stalls": Unavailable, "fails": Unavailable,
	}
	for mode, reason := range want {
		t.Run(mode, func(t *testing.T) {
			signing(t, nil, func(r *rig) {
				before := r.checkCertificate()
				r.ca.setMode(mode)
				r.wait(20 * time.Hour)
				if after := r.checkCertificate(); !after.Leaf().Equal(before.Leaf()) {
					t.Error("another certificate is in use")
				}
				if s := r.status(); s.Failed[reason] == 0 || len(s.Failed) != 1 || s.Error == "" || s.Attempts == 0 {
					t.Errorf("%+v, want the reason %s alone", s, reason)
				}
				if roots := r.roots(DefaultRoots); len(roots) != 1 {
					t.Errorf("%d roots: one came in with a lie", len(roots))
				}
				if err := r.m.Ready(); err != nil {
					t.Errorf("not ready though the certificate holds: %v", err)
				}
			})
		})
	}
}

func TestTheCertificateInUseStaysAfterItsEndUntilThereIsAnother(t *testing.T) {
	signing(t, nil, func(r *rig) {
		before := r.checkCertificate()
		r.ca.setMode("fails")
		r.wait(30 * time.Hour)
		if after := r.pair(DefaultSecret); after == nil || !after.Leaf().Equal(before.Leaf()) {
			t.Error("the certificate was taken away")
		}
		if err := r.m.Ready(); err == nil || !strings.Contains(err.Error(), "expired at") || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("ready: %v", err)
		}
		if !r.logged("level=ERROR msg=\"the certificate in use has expired") {
			t.Error("it was not logged")
		}
		// Attempts never end, and are frequent after the expiry.
		r.ca.count()
		r.wait(time.Hour)
		if n := r.ca.count(); n < 3600/10 || n > 3600/2 {
			t.Errorf("%d attempts in an hour without a valid certificate", n)
		}
		r.ca.setMode("")
		r.wait(urgentPause)
		r.checkCertificate()
		if err := r.m.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// While the CA is unreachable at the start, nothing is published.
func TestTheFirstCertificateIsPublishedAsSoonAsItIsThere(t *testing.T) {
	synctestStart := func(r *rig) {
		if got := r.state.names(); len(got) > 0 {
			t.Errorf("published %q", got)
		}
		if err := r.m.Ready(); err == nil || !strings.Contains(err.Error(), `no certificate "default" yet from dev: connection refused`) {
			t.Errorf("ready: %v", err)
		}
	}
	signing(t, nil, func(r *rig) {
		r.end()
		r.ca.setMode("fails")
		r.start(r.m.cfg)
		synctestStart(r)
		r.wait(time.Hour)
		synctestStart(r)
		r.ca.setMode("")
		r.wait(urgentPause)
		r.checkCertificate()
		// Roots come first, so that a client with the certificate can verify its peers.
		if got := r.state.names(); len(got) < 2 || got[len(got)-1] != DefaultSecret && got[len(got)-1] != workload {
			t.Errorf("published %q, want the certificate last", got)
		}
	})
}

func TestRenewalIsSpreadAroundHalfOfTheLifetime(t *testing.T) {
	signing(t, nil, func(r *rig) {
		id := r.m.sources[0].identities[0]
		var sum, squares, least, most float64 = 0, 0, 1, 0
		const n = 2000
		p := *r.checkCertificate()
		for range n {
			h, err := id.verify(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			share := float64(h.renewAt.Sub(h.issued)) / float64(h.Until.Sub(h.issued))
			sum, squares = sum+share, squares+share*share
			least, most = min(least, share), max(most, share)
		}
		mean := sum / n
		deviation := math.Sqrt(squares/n - mean*mean)
		// A uniform distribution between 0.45 and 0.55 has a deviation of 0.1/sqrt(12).
		if math.Abs(mean-0.5) > 0.005 || math.Abs(deviation-0.0289) > 0.003 || least < 0.45 || least > 0.46 || most > 0.55 || most < 0.54 {
			t.Errorf("mean %.4f, deviation %.4f, from %.4f to %.4f of the lifetime", mean, deviation, least, most)
		}
	})
}

// The time is drawn once for each certificate, however often it is checked.
func TestTheTimeOfRenewalStaysWhatItIs(t *testing.T) {
	signing(t, nil, func(r *rig) {
		next := r.status().Next
		for range 10 * 60 {
			r.wait(time.Minute)
			if got := r.status().Next; !got.Equal(next) {
				t.Fatalf("the next attempt is at %s, and was at %s", got, next)
			}
		}
	})
}

// No client subscribes in this test: the manager has its own timer (Istio 53118).
func TestARenewalNeedsNoSubscriber(t *testing.T) {
	signing(t, nil, func(r *rig) {
		first := r.checkCertificate()
		r.wait(14 * time.Hour)
		second := r.checkCertificate()
		if second.Leaf().Equal(first.Leaf()) {
			t.Error("not renewed")
		}
		if pkiSame(first, second) {
			t.Error("the key is the same as before")
		}
	})
}

func pkiSame(a, b *pki.Pair) bool {
	k, ok := a.Key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b.Key.Public())
}

// An error that a retry will not change is not retried in a tight loop.
func TestAnAnswerThatTheNextAttemptDoesNotChangeIsWaitedWith(t *testing.T) {
	signing(t, nil, func(r *rig) {
		r.end()
		r.ca.setMode("refuses")
		r.ca.count()
		r.start(r.m.cfg)
		r.wait(time.Minute)
		if n := r.ca.count(); n < 4 || n > 60/5+1 {
			t.Errorf("%d attempts in a minute", n)
		}
	})
}

func TestThePauseGrowsToATenthOfWhatIsLeft(t *testing.T) {
	for _, tc := range []struct {
		name     string
		failures int
		left     time.Duration
		refused  bool
		most     time.Duration
	}{
		{"the first, with a day left", 0, 24 * time.Hour, false, time.Second},
		{"the fifth", 4, 24 * time.Hour, false, 16 * time.Second},
		{"the thousandth", 1000, 24 * time.Hour, false, 5 * time.Minute},
		{"a minute left", 1000, time.Minute, false, 6 * time.Second},
		{"a second left", 1000, time.Second, false, time.Second},
		{"nothing left", 1000, 0, false, 10 * time.Second},
		{"ended an hour ago", 1000, -time.Hour, false, 10 * time.Second},
		{"refused", 0, 24 * time.Hour, true, 6 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var longest time.Duration
			for range 3000 {
				d := backoff(tc.failures, tc.left, tc.refused)
				if d <= 0 || d > tc.most {
					t.Fatalf("%s, want at most %s", d, tc.most)
				}
				if tc.refused && d < permanentPause {
					t.Fatalf("%s after a refusal", d)
				}
				longest = max(longest, d)
			}
			if longest < tc.most*9/10 {
				t.Errorf("at most %s of 3000, and %s is allowed: no full jitter", longest, tc.most)
			}
		})
	}
}

func TestACertificateFromTheFutureIsHeldUntilItIsValid(t *testing.T) {
	signing(t, nil, func(r *rig) {
		before := r.checkCertificate()
		r.ca.setMode("future")
		r.wait(r.status().Next.Sub(r.now()) + 30*time.Minute)
		if after := r.checkCertificate(); !after.Leaf().Equal(before.Leaf()) {
			t.Error("it is in use before it is valid")
		}
		s := r.status()
		if s.Pending.IsZero() || s.Failed[NotYetValid] == 0 || !strings.Contains(s.Error, "is a clock wrong?") {
			t.Errorf("%+v", s)
		}
		r.ca.setMode("fails")
		r.wait(s.Pending.Sub(r.now()) + time.Second)
		if after := r.checkCertificate(); after.Leaf().Equal(before.Leaf()) {
			t.Error("it is not in use though it is valid")
		}
	})
}

// A certificate that was made while the clock was ahead is rejected by peers when that is set right: it is replaced at once, and not when it would
// be renewed; also one that was stored.
func TestACertificateOfAClockThatWasAheadIsReplacedAtOnce(t *testing.T) {
	signing(t, nil, func(r *rig) {
		r.set(24 * time.Hour)
		r.wait(30 * time.Second)
		r.wait(12 * time.Hour) // it is renewed
		ahead := r.checkCertificate()
		r.set(-24 * time.Hour)
		r.wait(time.Minute)
		if after := r.checkCertificate(); after.Leaf().Equal(ahead.Leaf()) || after.Leaf().NotBefore.After(r.now()) {
			t.Errorf("valid from %s on, and it is %s", after.Leaf().NotBefore, r.now())
		}
	})
}

func TestAClockThatIsSetForwardIsNoticedWithin30Seconds(t *testing.T) {
	signing(t, nil, func(r *rig) {
		before := r.checkCertificate()
		r.wait(time.Hour)
		r.set(13 * time.Hour) // the machine was suspended
		r.wait(30 * time.Second)
		if after := r.checkCertificate(); after.Leaf().Equal(before.Leaf()) {
			t.Error("not renewed")
		}
		if !r.logged("the clock jumped") {
			t.Error("it was not logged")
		}
	})
}

func TestAClockThatIsSetBackKeepsTheCertificateAndTheAttempts(t *testing.T) {
	signing(t, nil, func(r *rig) {
		r.wait(5 * time.Minute)
		before := r.checkCertificate()
		r.ca.setMode("fails")
		r.set(14 * time.Hour)
		r.wait(time.Hour) // attempts fail by now
		r.set(-15 * time.Hour)
		r.ca.setMode("")
		r.wait(30 * time.Second)
		if s := r.status(); s.Attempts > 0 {
			t.Errorf("%+v: the attempt waits for a time that was set back", s)
		}
		if p := r.pair(DefaultSecret); p.Leaf().Equal(before.Leaf()) {
			t.Error("not renewed")
		}
	})
}

func TestEachKindOfKeyIsMade(t *testing.T) {
	for _, kind := range []pki.KeyType{pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048} {
		t.Run(string(kind), func(t *testing.T) {
			signing(t, func(c *Config) { c.Sources[0].KeyType = kind }, func(r *rig) {
				r.wait(time.Second)
				if got := r.checkCertificate().Leaf().PublicKeyAlgorithm.String(); !strings.HasPrefix(strings.ToUpper(string(kind)), strings.ToUpper(got)) {
					t.Errorf("a key of %s", got)
				}
			})
		})
	}
}
