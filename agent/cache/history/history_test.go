package history

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// TestTranscripts plays the transcripts of testdata/history.txt, each on the history of one name.
// Every line is a command; behind "->" stands what the method reports, and the history where it has
// changed. The commands:
//   - put V [from S] [ttl D]: source S ("one" by default) sends version V, whose TTL is D
//   - ack V, nack V, suspect V: a client answers version V
//   - retry: a suspect is pending again
//   - stable V: a client has used version V for long enough
//   - back V: version V is not good enough to fall back to
//
// The history is written as "V status", with "acked V" and "stable V" if there is such a content;
// "saved V" is what is kept on disk if that is not the ACKed content.
func TestTranscripts(t *testing.T) {
	for _, tr := range xdstest.Transcripts(t, "testdata/history.txt") {
		t.Run(tr.Title, func(t *testing.T) {
			tr.Play(t, (&talk{now: time.Unix(1e9, 0)}).do)
		})
	}
}

type talk struct {
	h     History
	now   time.Time
	known string
}

var sources = map[string]Source{"": 1, "one": 1, "two": 2}

func (tk *talk) do(words []string) (said []string, err error) {
	verb, version := words[0], ""
	if len(words) > 1 {
		version = words[1]
	}
	switch verb {
	case "put":
		r := &xds.Resource{Name: "x", Version: version, UpstreamVersion: "u" + version, Body: &anypb.Any{Value: []byte(version)}}
		source := Source(1)
		for i := 2; i+1 < len(words); i += 2 {
			switch words[i] {
			case "from":
				source = sources[words[i+1]]
			case "ttl":
				ttl, err := time.ParseDuration(words[i+1])
				if err != nil {
					return nil, err
				}
				r = r.WithLifetime(ttl, tk.now.Add(ttl))
			}
		}
		change, rewrite := tk.h.Put(r, source)
		said = append(said, [...]string{"nothing", "lifetime", "content"}[change])
		if rewrite {
			said = append(said, "rewrite")
		}
	case "ack":
		if tk.h.Ack(&xds.Resource{Name: "x", Version: version}) {
			said = append(said, "changed")
		}
	case "nack":
		if tk.h.Nack(version, "no good: "+version) {
			said = append(said, "nacked")
		}
	case "suspect":
		tk.h.Suspect(version)
	case "retry":
		if tk.h.Retry() {
			said = append(said, "retried")
		}
	case "stable":
		if tk.h.MakeStable(version) {
			said = append(said, "stable")
		}
	case "back":
		tk.h.RevertAcked(version)
	default:
		return nil, fmt.Errorf("unknown command %q", verb)
	}
	if known := tk.describe(); known != tk.known {
		tk.known = known
		said = append(said, known)
	}
	return said, nil
}

func (tk *talk) describe() string {
	h := &tk.h
	out := h.Current().Version + " " + h.Status().String()
	if reason := h.Reason(); reason != "" {
		out += " (" + reason + ")"
	}
	of := func(word string, r *xds.Resource) {
		if r == nil {
			return
		}
		out += "; " + word + " " + r.Version
		if r.TTL() > 0 {
			out += fmt.Sprintf(" for %s", r.TTL())
		}
	}
	of("acked", h.Acked())
	of("stable", h.Stable())
	s := h.Save()
	if s.Content != h.Acked() || s.Content == nil {
		if s.Content == nil {
			out += "; saved nothing"
		} else {
			of("saved", s.Content)
		}
	} else if s.Source != h.Source() {
		out += fmt.Sprintf(", of source %d", s.Source)
	}
	if sent := h.Sent(); sent != h.Current() {
		if sent == nil {
			out += "; sent nothing"
		} else {
			of("sent", sent)
		}
	}
	return out
}

// Without the reason of the newest content the control plane would get an ACK for it.
func TestTheReasonsThatAreRememberedAreBounded(t *testing.T) {
	var h History
	h.Put(&xds.Resource{Name: "x", Version: "current"}, 1)
	h.Nack("current", "this one")
	for i := range 20 * maxReasons {
		h.Nack(fmt.Sprint(i), "late")
	}
	if len(h.reasons) > maxReasons || h.Reason() != "this one" {
		t.Errorf("%d reasons are remembered, that of the newest is %q", len(h.reasons), h.Reason())
	}
}

// Several clients NACK the same content.
func TestARepeatedNackForgetsNoOtherReason(t *testing.T) {
	var h History
	h.Put(&xds.Resource{Name: "x", Version: "current"}, 1)
	for i := range maxReasons {
		h.Nack(fmt.Sprint(i), "bad")
	}
	for range maxReasons {
		h.Nack("0", "bad")
	}
	if len(h.reasons) != maxReasons {
		t.Errorf("%d reasons are remembered, want %d", len(h.reasons), maxReasons)
	}
}

// All streams share the first copy of a body: an equal one from the source does not replace it.
func TestTheBodyThatIsSharedStays(t *testing.T) {
	put := func(h *History, version, upstream string) *xds.Resource {
		r := &xds.Resource{Name: "x", Version: version, UpstreamVersion: upstream, Body: &anypb.Any{Value: []byte(version)}}
		h.Put(r, 1)
		return r
	}
	var h History
	first := put(&h, "1", "a")
	h.Ack(first)
	put(&h, "1", "b")
	if h.Current().Body != first.Body || h.Current().UpstreamVersion != "b" || h.Acked() != h.Current() {
		t.Error("the body was replaced, or what came with it was not")
	}
	again := *first
	if h.Put(&again, 1); h.Current() != &again || h.Acked() != &again {
		t.Error("the newest pointer is not held, so that it is not known again")
	}
}

func TestWhatWasOnDiskIsTakenInAsItWas(t *testing.T) {
	r, before := &xds.Resource{Name: "x", Version: "2"}, &xds.Resource{Name: "x", Version: "1"}
	for _, tc := range []struct {
		name string
		h    History
		want string
	}{
		{"not answered", Restored(Saved{Content: r, Source: 1}), "2 pending; saved 2"},
		{"ACKed", Restored(Saved{Content: r, Source: 1, Acked: true}), "2 accepted; acked 2"},
		{"stable", Restored(Saved{Content: r, Source: 1, Acked: true, Stable: true}), "2 accepted; acked 2; stable 2"},
		{"with what was before", Restored(Saved{Content: r, Source: 1, Acked: true, Previous: before}), "2 accepted; acked 2; stable 1"},
	} {
		if got := (&talk{h: tc.h}).describe(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
