package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// FuzzConversation plays the conversation that the input encodes: changes of the subscription, valid
// and invalid responses, ACKs, NACKs and time, in both forms. The promises of the README to a control
// plane must hold:
//
//   - the first request of a type without a wildcard has a name (protocol.md 7.9, V8);
//   - each nonce is answered once, with the first ACK or NACK of the clients; a second answer is a NACK
//     in Delta, after an ACK because of the timeout (I6);
//   - in the end every response is answered, in SotW the newest one of each type, and the server has
//     exactly the subscription of the clients.
//
// More seeds are in testdata/fuzz.
func FuzzConversation(f *testing.F) {
	f.Add(false, []byte("\x00\x00\x01\x04\x03\x06\x05\x00"))
	f.Add(true, []byte("\x02\x00\x04\x00\x44\x00\x06\x02\x07\x00\x00\x02"))
	f.Fuzz(func(t *testing.T, sotw bool, input []byte) {
		form := xds.Delta
		if sotw {
			form = xds.SotW
		}
		fz := &fuzzTalk{T: t, talk: newTalk(form, true), questions: make(map[string]*question), newest: make(map[string]string)}
		for op, arg := range xdstest.Steps(input, 200) {
			fz.step(op, arg)
		}
		fz.finish()
	})
}

var (
	fuzzTypes = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType, "example.Gizmo"}
	fuzzNames = []string{"a", "b", "c", "*"}
	fuzzParts = [][]string{
		{"a@1"}, {"a@2", "b@1"}, {}, {"-a"}, {"a@1", "-a"}, {"wrong:a", "b@2"}, {"nameless"}, {"a@1", "a@2"},
		{"beat:a@1:60s"}, {"beat:a@1"}, {"a@3:ttl=60s", "c@1"}, {"err:a:NOT_FOUND"}, {"cut:a"}, {"--b", "c@2"}, {"-b", "-b"}, {"*@1"},
	}
	fuzzPauses = []time.Duration{time.Millisecond, 499 * time.Millisecond, time.Second, time.Minute}
)

// question is a response, and the answers that the server got.
type question struct {
	typeURL   string
	at        time.Time
	malformed bool
	// reason is the first answer of the clients in time; known is set if there was one.
	known   bool
	reason  error
	late    bool // a NACK came after an ACK
	answers []bool
}

type fuzzTalk struct {
	*testing.T
	*talk
	questions map[string]*question // by nonce
	newest    map[string]string    // nonce by type
	log       []string
}

func (fz *fuzzTalk) step(op, arg byte) {
	typeURL := fuzzTypes[int(arg>>4)%len(fuzzTypes)]
	low := int(arg & 15)
	switch op % 8 {
	case 0:
		fz.say("want %s %s", xds.Short(typeURL), fuzzNames[low%4])
		fz.want(typeURL, true, []string{fuzzNames[low%4]})
	case 1:
		fz.say("drop %s %s", xds.Short(typeURL), fuzzNames[low%4])
		fz.want(typeURL, false, []string{fuzzNames[low%4]})
	case 2, 3:
		fz.ask(typeURL, fuzzParts[low%len(fuzzParts)])
	case 4, 5:
		fz.answer(typeURL, low, op%8 == 5)
	case 6:
		fz.say("after %v", fuzzPauses[low%4])
		fz.pause(fuzzPauses[low%4])
	case 7:
		fz.take()
	}
}

func (fz *fuzzTalk) say(format string, args ...any) {
	fz.log = append(fz.log, fmt.Sprintf(format, args...))
}

func (fz *fuzzTalk) fail(format string, args ...any) {
	fz.Helper()
	for _, l := range fz.log {
		fz.Log(l)
	}
	fz.Fatalf(format, args...)
}

func (fz *fuzzTalk) ask(typeURL string, parts []string) {
	fz.got = nil
	if err := fz.respond(typeURL, parts); err != nil {
		fz.fail("%v", err)
	}
	fz.say("resp %s %v: %v", xds.Short(typeURL), parts, fz.got)
	if slices.Contains(fz.got, "ignored") {
		return
	}
	nonce := fz.serverType(typeURL).last()
	q := &question{typeURL: typeURL, at: fz.now}
	sub := fz.machine.types[typeURL]
	if at := slices.IndexFunc(sub.answers, func(a *answer) bool { return a.nonce == nonce }); at >= 0 {
		q.malformed = sub.answers[at].nack != ""
	}
	fz.questions[nonce], fz.newest[typeURL] = q, nonce
}

// answer passes an ACK or NACK of the response that is back responses old.
func (fz *fuzzTalk) answer(typeURL string, back int, nack bool) {
	nonces := fz.serverType(typeURL).nonces
	if len(nonces) == 0 {
		return
	}
	nonce := nonces[max(0, len(nonces)-1-back)]
	var reason error
	if nack {
		reason = errors.New("no good")
	}
	late := fz.machine.Answer(typeURL, nonce, reason, fz.now)
	fz.say("reason %s %v, late %v", nonce, reason, late)
	q := fz.questions[nonce]
	switch {
	case q == nil:
		if late {
			fz.fail("late for a response that was ignored")
		}
	case late:
		if q.late || q.known || !slices.Equal(q.answers, []bool{false}) || reason == nil {
			fz.fail("%s: late, after %v", nonce, q.answers)
		}
		q.late = true
	case len(q.answers) == 0 && !q.known && !q.malformed:
		q.known, q.reason = true, reason
	case len(q.answers) == 1 && !q.known && reason == nil:
		q.known = true // no answer can follow it
	}
}

func (fz *fuzzTalk) pause(d time.Duration) {
	end := fz.now.Add(d)
	for range 1000 {
		fz.take()
		if fz.wake.IsZero() || fz.wake.After(end) {
			fz.now = end
			return
		}
		if fz.wake.Before(fz.now) {
			fz.fail("returned a time in the past")
		}
		fz.now = fz.wake
	}
	fz.fail("a thousand times awake in %v", d)
}

// take passes every request of the machine to the server.
func (fz *fuzzTalk) take() {
	for range 1000 {
		settled, next := fz.machine.Completed(fz.now)
		for _, url := range settled {
			if fz.form == xds.SotW || !fz.wanted[url][xds.Wildcard] {
				fz.fail("%s: settled", xds.Short(url))
			}
		}
		req, at := fz.machine.Next(fz.now)
		if req == nil {
			fz.wake = wake.Earliest(next, at)
			if !fz.wake.IsZero() && !fz.wake.After(fz.now) {
				fz.fail("no request, and yet the time of the next call is now")
			}
			return
		}
		fz.receive(req)
		fz.say("-> %s", fz.request(req))
	}
	fz.fail("a thousand requests at once")
}

func (fz *fuzzTalk) receive(req *Request) {
	if !fz.serverType(req.Type).requested && !xds.Info(req.Type).LegacyWildcard && len(req.Names)+len(req.Subscribe) == 0 && req.Nonce == "" {
		fz.fail("%s: the first request names nothing", xds.Short(req.Type))
	}
	if slices.ContainsFunc(req.Subscribe, func(n string) bool { return slices.Contains(req.Unsubscribe, n) }) {
		fz.fail("%v is both subscribed to and unsubscribed", req.Subscribe)
	}
	if req.Nonce == "" {
		if req.NACK != "" {
			fz.fail("a NACK of nothing")
		}
		return
	}
	q := fz.questions[req.Nonce]
	if q == nil || q.typeURL != req.Type {
		fz.fail("%s: nonce %s was not given", xds.Short(req.Type), req.Nonce)
	}
	if fz.form == xds.SotW && req.NACK == "" && len(q.answers) > 0 {
		return // it changes names, and is not an answer
	}
	nack := req.NACK != ""
	q.answers = append(q.answers, nack)
	switch {
	case len(q.answers) == 2 && q.late && nack && fz.form == xds.Delta:
	case len(q.answers) > 1:
		fz.fail("%s: answered %v", req.Nonce, q.answers)
	case q.malformed != nack && !q.known:
		fz.fail("%s: malformed %v, answered with a NACK %v", req.Nonce, q.malformed, nack)
	case q.known && nack != (q.reason != nil):
		fz.fail("%s: reason %v, answered with a NACK %v", req.Nonce, q.reason, nack)
	case !q.known && !q.malformed && fz.form == xds.Delta && fz.now.Before(q.at.Add(DefaultAckTimeout)):
		fz.fail("%s: ACKed before its time, before the clients answered", req.Nonce)
	}
}

// finish lets all timeouts pass and compares what the server knows.
func (fz *fuzzTalk) finish() {
	fz.pause(2 * time.Hour)
	for nonce, q := range fz.questions {
		due := fz.form == xds.Delta || fz.newest[q.typeURL] == nonce
		want := 1
		if q.late && fz.form == xds.Delta {
			want = 2
		}
		if due && len(q.answers) != want {
			fz.fail("%s: %d answers, want %d", nonce, len(q.answers), want)
		}
	}
	for url, wanted := range fz.wanted {
		st := fz.serverType(url)
		if fz.form == xds.SotW && len(wanted) == 0 && !st.explicit {
			continue // a legacy wildcard cannot be dropped by a request without names (protocol.md 2.1)
		}
		if !maps.Equal(st.names, wanted) {
			fz.fail("%s: wanted %v, the server believes %v", xds.Short(url), wanted, st.names)
		}
	}
}
