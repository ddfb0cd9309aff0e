package spire

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

func TestAddressesAreChecked(t *testing.T) {
	for _, tc := range []struct {
		addr string
		uri  string
		want string // part of the error; "" for none
	}{
		{"unix:/run/agent.sock", "unix:///run/agent.sock", ""},
		{"unix:///run/agent.sock", "unix:///run/agent.sock", ""},
		{"unix:/run/a b%.sock", "unix:///run/a%20b%25.sock", ""},
		{"tcp:127.0.0.1:8081", "tcp://127.0.0.1:8081", ""},
		{"tcp://127.0.0.1:8081", "tcp://127.0.0.1:8081", ""},
		{"tcp:[::1]:8081", "tcp://[::1]:8081", ""},
		{"unix:", "", "want an absolute path"},
		{"unix:agent.sock", "", "want an absolute path"},
		{"unix://agent/sock", "", "want an absolute path"},
		{"tcp:localhost:8081", "", "want tcp:IP:PORT"},
		{"tcp:127.0.0.1", "", "want tcp:IP:PORT"},
		{"tcp:127.0.0.1:0", "", "want tcp:IP:PORT"},
		{"tcp:127.0.0.1:8081/x", "", "want tcp:IP:PORT"},
		{"tcp:[fe80::1%eth0]:8081", "", "want tcp:IP:PORT"},
		{"/run/agent.sock", "", "want unix:PATH or tcp:IP:PORT"},
		{"npipe:agent", "", "want unix:PATH or tcp:IP:PORT"},
		{"", "", "want unix:PATH or tcp:IP:PORT"},
	} {
		t.Run(tc.addr, func(t *testing.T) {
			s, err := New(tc.addr, nil)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want == "" && s.uri != tc.uri:
				t.Errorf("URI %s, want %s", s.uri, tc.uri)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.addr)):
				t.Errorf("error %v, want one with %q and the address", err, tc.want)
			}
		})
	}
}

func TestKeysThatPassANetworkAreWarnedOf(t *testing.T) {
	for addr, want := range map[string]bool{"tcp:127.0.0.1:8081": false, "tcp:[::1]:8081": false, "tcp:10.0.0.1:8081": true, "unix:/run/agent.sock": false} {
		t.Run(addr, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.limit = patience
				pipe := &xdstest.Pipe{}
				r.agent.serve(t, pipe.Listen())
				r.run(addr, grpc.WithContextDialer(pipe.DialContext))
				r.send(turn{message: message(r.ca.svid(web, newKey(t)))})
				r.expectUpdate()
				if got := strings.Contains(r.log.String(), "level=WARN msg=\"private keys are received unencrypted"); got != want {
					t.Errorf("warned: %v, want %v", got, want)
				}
			})
		})
	}
}

func TestAWorkloadThatIsNotRegisteredIsReportedOnceAndAsksAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		for range 5 {
			r.send(turn{err: status.Error(codes.PermissionDenied, "no identity issued")})
		}
		r.expectFault("no identity is registered for this process", "no identity issued", "SPIFFE Workload API unix:/pipe")
		r.send(turn{message: message(r.ca.svid(web, newKey(r.T)))})
		r.expectRecovery()
		r.expectNothing()
	})
}

func TestEachDifferentFaultIsReported(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.send(turn{err: status.Error(codes.PermissionDenied, "no identity issued")})
		r.expectFault("no identity issued")
		r.send(turn{err: status.Error(codes.Internal, "broken")})
		r.expectFault("the SPIRE agent does not work", "broken")
		r.send(turn{err: status.Error(codes.PermissionDenied, "no identity issued")})
		r.expectFault("no identity issued")
		r.send(turn{message: message(r.ca.svid(web, newKey(r.T)))})
		r.expectRecovery()
	})
}

// go-spiffe asks again by itself after most codes, and gives up after two.
func TestHoweverAStreamEndsTheAgentIsAskedAgainWithin30s(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		text string
	}{
		{"without an error", nil, "the SPIRE agent ended the stream"},
		{"INVALID_ARGUMENT", status.Error(codes.InvalidArgument, "why"), "is the server at this address a SPIRE agent"},
		{"CANCELLED", status.Error(codes.Canceled, "why"), "the SPIRE agent does not work"},
		{"UNIMPLEMENTED", status.Error(codes.Unimplemented, "why"), "is the server at this address a SPIRE agent"},
		{"UNAVAILABLE", status.Error(codes.Unavailable, "why"), "is the SPIRE agent running"},
		{"DEADLINE_EXCEEDED", status.Error(codes.DeadlineExceeded, "why"), "the SPIRE agent does not work"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				good := turn{message: message(r.ca.svid(web, newKey(r.T)))}
				for range 40 {
					r.send(turn{err: tc.err})
				}
				r.expectFault(tc.text)
				r.send(good)
				r.expectRecovery()
				// After an update the pauses start from the beginning.
				r.send(turn{err: tc.err})
				r.expectFault(tc.text)
				r.send(good)
				r.expectRecovery()
				r.expectNothing()
				opened := r.agent.streams()
				var pauses []time.Duration
				for i := range opened[1:] {
					pauses = append(pauses, opened[i+1].Sub(opened[i]))
				}
				if first, longest, last := pauses[0], pauses[39], pauses[40]; first != time.Second || longest != maxPause || last != time.Second {
					r.Errorf("pauses %v, want from 1 s to %s, and 1 s after the update", pauses, maxPause)
				}
			})
		})
	}
}

// Many times, since gRPC's pauses are random, and may be short by chance.
func TestAnAgentThatWasAwayForLongIsFoundSoon(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.send(turn{message: message(r.ca.svid(web, newKey(r.T)))})
		r.expectUpdate()
		for range 8 {
			r.stop()
			r.expectFault("is the SPIRE agent running, and its socket mounted here?")
			time.Sleep(15 * time.Minute)
			back := time.Now()
			r.serve()
			r.send(turn{message: message(r.ca.svid(web, newKey(r.T)))})
			r.expectUpdateAfterFaults()
			if waited := time.Since(back); waited > maxPause+2*connecting.Backoff.MaxDelay {
				r.Errorf("found after %s, want %s and a few seconds at most", waited, maxPause)
			}
		}
	})
}

// expectUpdateAfterFaults waits for an update after any number of faults, and the end of the
// fault.
func (r *rig) expectUpdateAfterFaults() (u pki.Update) {
	r.Helper()
	for {
		switch e := r.next(); {
		case e.update != nil:
			if e := r.next(); e.update != nil || e.fault != nil {
				r.Fatalf("update %v, fault %v; want that it is mended", e.update, e.fault)
			}
			return *e.update
		case e.fault == nil:
			r.Fatal("mended before an update")
		}
	}
}

func TestAnAgentThatIsKilledAndStartedAgainIsFoundAtTheSameSocket(t *testing.T) {
	r := atSocket(t)
	r.send(turn{message: message(r.ca.svid(web, newKey(t)))})
	r.expectUpdate()
	r.stop()
	r.expectFault("SPIFFE Workload API unix:")
	r.serve()
	key := newKey(t)
	r.send(turn{message: message(r.ca.svid(web, key))})
	if u := r.expectUpdateAfterFaults(); !key.Equal(u.Pairs[0].Key) {
		t.Error("the update is not that of the new agent")
	}
}

func TestWhatEndsWithTheContextIsNoFault(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.send(turn{message: message(r.ca.svid(web, newKey(r.T)))})
		r.expectUpdate()
		r.end()
		r.expectNothing()
	})
	inBubble(t, func(r *rig) { // while it waits to ask again
		r.send(turn{err: status.Error(codes.InvalidArgument, "why")})
		r.expectFault("why")
		r.end()
		r.expectNothing()
	})
}
