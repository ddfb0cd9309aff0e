package session

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// TestTranscripts runs the conversations of testdata. A file contains transcripts, each under a
// "# title"; sotw.txt and delta.txt have those of one wire form, both.txt those that are the same in
// both. Each line is a command and, after "->", every output that follows, separated by commas. The
// outputs are collected after each command, and at each time that the machine has returned.
//
//	want T NAMES      adds names to the subscription ("*" for the wildcard)
//	drop T NAMES      drops names from it
//	hold T NAME@V …   sets the cached resources, each with the version that this server issued;
//	                  a NAME alone came from another source
//	reject T NAMES    sets the cached resources that this server sent and clients NACKed
//	lease T NAMES     sets the names that are only leased, "gone" those whose clusters have gone
//	forget T          calls Forget
//	again             calls RequestAgain
//	health WORD       calls Report: "ok" for healthy, anything else is the reason; every new stream is told the last one
//	note T            calls Note with what is held back of a type, or nothing for "none"; every new stream is told the last one
//	named NAME        the server names itself so from now on
//	late              sets Config.ReportLate for streams that are opened
//	hold-health D     lets new streams report no health for a time
//	open              opens a new stream
//	resp T PART …     the server sends a response, with the nonce n1, n2, … and, in SotW, the
//	                  version v1, v2, …. A PART is
//	    NAME@CONTENT      a resource, in SotW without a wrapper
//	    NAME@CONTENT:ttl=60s   a resource with a TTL, in SotW in a wrapper
//	    beat:NAME@V:60s   a heartbeat of the version V; the TTL may be missing
//	    wrong:NAME        a wrapper with a resource of another type
//	    cut:NAME          a wrapper with a resource that ends in the middle of a field
//	    NAME@unfit        a resource that Config.Check rejects
//	    nameless          a resource without a name
//	    -NAME             Delta: a removal; "--NAME" uses the newer field
//	    err:NAME:CODE     a resource error
//	    v=V               SotW: another version_info
//	ok T, no T        the clients ACK or NACK the newest response of the type; "ok T n1" an older one
//	after D           time passes
//
// The outputs of a response are "put", "remove", "complete", "refresh" (a heartbeat) and "error".
// "report" is a report of health, "note" one of the agent.
// "settled" is a result of Completed, "overdue" and "gone" are errors and removals of Overdue, and
// "reopen" means that Reopen returns true. In both.txt a request is "ask T +NAME -NAME", "ack T NONCE"
// or "nack T NONCE: reason"; in the other files every field of it is shown that is not empty.
func TestTranscripts(t *testing.T) {
	for _, file := range []struct {
		name  string
		forms []xds.Form
	}{
		{"both.txt", []xds.Form{xds.SotW, xds.Delta}},
		{"sotw.txt", []xds.Form{xds.SotW}},
		{"delta.txt", []xds.Form{xds.Delta}},
	} {
		for _, tr := range xdstest.Transcripts(t, filepath.Join("testdata", file.name)) {
			for _, form := range file.forms {
				t.Run(form.String()+" "+tr.Title, func(t *testing.T) { tr.Play(t, newTalk(form, len(file.forms) == 1).play) })
			}
		}
	}
}

// talk is a server, a machine, and the subscription and cached resources of the machine.
type talk struct {
	form     xds.Form
	verbatim bool
	machine  *Session
	now      time.Time
	wake     time.Time // when the machine must be called again
	versions map[string]Version
	cached   map[string]map[string]string
	nacked   map[string][]string
	leased   map[string][]string
	gone     map[string][]string
	rechecks map[string]int
	health   xds.Health
	note     xds.AgentReport
	name     string
	late     bool
	holds    time.Duration
	wanted   map[string]map[string]bool
	// The server: the subscription that it knows, and its nonces by type.
	server map[string]*serverType
	nonces int
	// contents has the content of each body that was sent.
	contents map[string]string
	// got has the outputs of the current command.
	got []string
}

// serverType is what a server knows of the subscription to one type.
type serverType struct {
	names     map[string]bool // "*" for a wildcard
	requested bool            // a request came
	explicit  bool            // a request had a name, or "*"
	nonces    []string
}

func newTalk(form xds.Form, verbatim bool) *talk {
	tk := &talk{
		form: form, verbatim: verbatim, now: time.Unix(1e9, 0),
		versions: make(map[string]Version),
		cached:   make(map[string]map[string]string),
		wanted:   make(map[string]map[string]bool),
		contents: make(map[string]string),
		nacked:   make(map[string][]string),
		leased:   make(map[string][]string),
		gone:     make(map[string][]string),
		rechecks: make(map[string]int),
	}
	tk.open()
	return tk
}

// open opens a stream, and passes the whole subscription to the machine.
func (tk *talk) open() {
	tk.server = make(map[string]*serverType)
	tk.machine = New(Config{
		Form:     tk.form,
		Versions: tk.versions,
		Cached:   func(typeURL string) map[string]string { return maps.Clone(tk.cached[typeURL]) },
		Nacked:   func(typeURL string) []string { return slices.Clone(tk.nacked[typeURL]) },
		Optional: func(typeURL string) (gone, leased []string) {
			return slices.Clone(tk.gone[typeURL]), slices.Clone(tk.leased[typeURL])
		},
		Rechecks: tk.rechecks, ReportLate: tk.late, NotBefore: map[string]time.Time{xds.HealthType: tk.now.Add(tk.holds)},
		Check: func(r *xds.Resource) error {
			if tk.contents[string(r.Body.GetValue())] == "unfit" {
				return fmt.Errorf("%s %q: unfit", xds.Short(r.Type), r.Name)
			}
			return nil
		},
	})
	tk.machine.Report(tk.health)
	tk.machine.Note(tk.note)
	for url, names := range tk.wanted {
		list := slices.Collect(maps.Keys(names))
		tk.machine.Subscribe(url, names[xds.Wildcard], slices.DeleteFunc(list, isWildcard), nil)
	}
}

func isWildcard(name string) bool { return name == xds.Wildcard }

// play runs a command and returns its outputs.
func (tk *talk) play(words []string) ([]string, error) {
	tk.got = nil
	err := tk.do(words)
	return tk.got, err
}

func (tk *talk) do(words []string) error {
	verb, args := words[0], words[1:]
	switch verb {
	case "open":
		tk.open()
		tk.drain()
		return nil
	case "again":
		tk.machine.RequestAgain()
		tk.drain()
		return nil
	case "late":
		tk.late = true
		return nil
	case "health":
		tk.health = xds.Health{Known: true, Reason: strings.TrimPrefix(args[0], "ok")}
		tk.machine.Report(tk.health)
		tk.drain()
		return nil
	case "note":
		tk.note = xds.AgentReport{}
		if args[0] != "none" {
			tk.note.HeldBack = []xds.HeldBack{{Type: args[0]}}
		}
		tk.machine.Note(tk.note)
		tk.drain()
		return nil
	case "named":
		tk.name = args[0]
		return nil
	case "hold-health":
		d, err := time.ParseDuration(args[0])
		tk.holds = d
		return err
	case "after":
		d, err := time.ParseDuration(args[0])
		tk.pass(d)
		return err
	}
	typeURL, ok := xds.TypeByShort(args[0])
	if !ok {
		typeURL = args[0]
	}
	args = args[1:]
	switch verb {
	case "want", "drop":
		tk.want(typeURL, verb == "want", args)
	case "hold":
		tk.hold(typeURL, args)
		return nil
	case "reject":
		tk.nacked[typeURL] = args
		return nil
	case "lease":
		tk.leased[typeURL] = args
	case "gone":
		tk.gone[typeURL] = args
	case "forget":
		tk.machine.Forget(typeURL)
		return nil
	case "resp":
		if err := tk.respond(typeURL, args); err != nil {
			return err
		}
	case "ok", "no":
		nonce := tk.serverType(typeURL).last()
		if len(args) > 0 {
			nonce = args[0]
		}
		var reason error
		if verb == "no" {
			reason = errors.New("no good")
		}
		if tk.machine.Answer(typeURL, nonce, reason, tk.now) {
			tk.got = append(tk.got, "late")
		}
	default:
		return fmt.Errorf("unknown command %q", verb)
	}
	tk.drain()
	return nil
}

func (tk *talk) want(typeURL string, more bool, names []string) {
	wanted := tk.wanted[typeURL]
	if wanted == nil {
		wanted = make(map[string]bool)
		tk.wanted[typeURL] = wanted
	}
	for _, name := range names {
		if more {
			wanted[name] = true
		} else {
			delete(wanted, name)
		}
	}
	var add, drop []string
	named := slices.DeleteFunc(slices.Clone(names), isWildcard)
	if more {
		add = named
	} else {
		drop = named
	}
	tk.machine.Subscribe(typeURL, wanted[xds.Wildcard], add, drop)
}

func (tk *talk) hold(typeURL string, args []string) {
	cached := make(map[string]string)
	for _, arg := range args {
		name, version, _ := strings.Cut(arg, "@")
		cached[name] = version
	}
	tk.cached[typeURL] = cached
}

// pass lets time pass, and calls the machine at the times that it returned.
func (tk *talk) pass(d time.Duration) {
	end := tk.now.Add(d)
	for !tk.wake.IsZero() && !tk.wake.After(end) {
		tk.now = tk.wake
		tk.drain()
	}
	tk.now = end
}

// drain collects all outputs of the machine.
func (tk *talk) drain() {
	for said := false; ; {
		settled, completed := tk.machine.Completed(tk.now)
		for _, url := range settled {
			tk.got = append(tk.got, "settled "+xds.Short(url))
		}
		agreed, agrees := tk.machine.Agreed(tk.now)
		for _, url := range agreed {
			tk.got = append(tk.got, "agreed "+xds.Short(url))
		}
		overdue, timeout := tk.machine.Overdue(tk.now)
		for _, u := range overdue {
			for _, name := range u.Removed {
				tk.got = append(tk.got, "gone "+xds.Short(u.Type)+" "+name)
			}
			for _, e := range u.Errors {
				tk.got = append(tk.got, "overdue "+xds.Short(u.Type)+" "+e.Name)
			}
		}
		if tk.machine.Reopen() && !said {
			said = true
			tk.got = append(tk.got, "reopen")
		}
		req, at := tk.machine.Next(tk.now)
		if req == nil {
			tk.wake = wake.Earliest(completed, agrees, timeout, at)
			return
		}
		tk.got = append(tk.got, tk.request(req))
	}
}

func (tk *talk) serverType(url string) *serverType {
	st := tk.server[url]
	if st == nil {
		st = &serverType{names: make(map[string]bool)}
		tk.server[url] = st
	}
	return st
}

func (st *serverType) last() string {
	if len(st.nonces) == 0 {
		return ""
	}
	return st.nonces[len(st.nonces)-1]
}

// subscribe applies the subscription of a request, as a server does (protocol.md section 2).
func (st *serverType) subscribe(form xds.Form, req *Request) {
	legacy := !st.requested && xds.Info(req.Type).LegacyWildcard
	st.requested = true
	if form == xds.Delta {
		st.explicit = st.explicit || len(req.Subscribe) > 0
		if legacy && len(req.Subscribe) == 0 {
			st.names[xds.Wildcard] = true
		}
		for _, name := range req.Subscribe {
			st.names[name] = true
		}
		for _, name := range req.Unsubscribe {
			delete(st.names, name)
		}
		return
	}
	st.explicit = st.explicit || len(req.Names) > 0
	if len(req.Names) == 0 && !st.explicit && xds.Info(req.Type).LegacyWildcard {
		st.names[xds.Wildcard] = true
		return
	}
	clear(st.names)
	for _, name := range req.Names {
		st.names[name] = true
	}
}

// request passes a request to the server and returns how it is shown.
func (tk *talk) request(req *Request) string {
	if req.Type == xds.HealthType || req.Type == xds.AgentReportType {
		if len(req.Names)+len(req.Subscribe)+len(req.Unsubscribe)+len(req.Initial) > 0 || req.Nonce+req.Version != "" {
			return fmt.Sprintf("%+v", req)
		}
		if report, err := xds.ParseAgentReport(req.NACK); req.Type == xds.AgentReportType && err == nil {
			if len(report.HeldBack) == 0 {
				return "note none"
			}
			return "note " + report.HeldBack[0].Type
		}
		return "report " + cmp.Or(req.NACK, "ok")
	}
	st := tk.serverType(req.Type)
	before := maps.Clone(st.names)
	st.subscribe(tk.form, req)
	words := []string{xds.Short(req.Type)}
	if tk.verbatim {
		return strings.Join(append(words, tk.wordByWord(req)...), " ")
	}
	// In a SotW request that only changes names, the nonce does not matter.
	answers := req.NACK != "" || req.Nonce != "" && maps.Equal(before, st.names)
	verb := "ask"
	switch {
	case req.NACK != "":
		verb = "nack"
		words = append(words, req.Nonce+": "+req.NACK)
	case answers:
		verb = "ack"
		words = append(words, req.Nonce)
	}
	for _, name := range slices.Sorted(maps.Keys(st.names)) {
		if !before[name] {
			words = append(words, "+"+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !st.names[name] {
			words = append(words, "-"+name)
		}
	}
	return verb + " " + strings.Join(words, " ")
}

func (tk *talk) wordByWord(req *Request) []string {
	var words []string
	word := func(key, value string) {
		if value != "" {
			words = append(words, key+"="+value)
		}
	}
	word("version", strings.ReplaceAll(req.Version, UnknownVersion, "unissued"))
	word("nonce", req.Nonce)
	if tk.form == xds.SotW {
		words = append(words, "names="+strings.Join(req.Names, ";"))
	}
	word("sub", strings.Join(req.Subscribe, ";"))
	word("unsub", strings.Join(req.Unsubscribe, ";"))
	var irv []string
	for _, name := range slices.Sorted(maps.Keys(req.Initial)) {
		irv = append(irv, name+"@"+strings.ReplaceAll(req.Initial[name], UnknownVersion, "unissued"))
	}
	word("irv", strings.Join(irv, ";"))
	word("nack", req.NACK)
	return words
}

// respond passes a response of the server to the machine.
func (tk *talk) respond(typeURL string, parts []string) error {
	tk.nonces++
	nonce := fmt.Sprintf("n%d", tk.nonces)
	st := tk.serverType(typeURL)
	st.nonces = append(st.nonces, nonce)
	from := &corev3.ControlPlane{Identifier: tk.name}
	delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, ControlPlane: from}
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: fmt.Sprintf("v%d", tk.nonces), ControlPlane: from}
	for _, part := range parts {
		switch {
		case strings.HasPrefix(part, "v="):
			sotw.VersionInfo = part[2:]
		case strings.HasPrefix(part, "--"):
			delta.RemovedResourceNames = append(delta.RemovedResourceNames, &discoveryv3.ResourceName{Name: part[2:]})
		case strings.HasPrefix(part, "-"):
			delta.RemovedResources = append(delta.RemovedResources, part[1:])
		case strings.HasPrefix(part, "err:"):
			e, err := resourceError(part[4:])
			if err != nil {
				return err
			}
			delta.ResourceErrors = append(delta.ResourceErrors, e)
			sotw.ResourceErrors = append(sotw.ResourceErrors, e)
		default:
			w, err := tk.resource(typeURL, part)
			if err != nil {
				return err
			}
			delta.Resources = append(delta.Resources, w)
			entry := w.GetResource()
			if entry == nil || w.GetTtl() != nil || strings.HasPrefix(part, "wrong:") || strings.HasPrefix(part, "cut:") {
				value, err := proto.Marshal(w)
				if err != nil {
					return err
				}
				entry = &anypb.Any{TypeUrl: xds.WrapperType, Value: value}
			}
			sotw.Resources = append(sotw.Resources, entry)
		}
	}
	var u *Response
	var err error
	if tk.form == xds.Delta {
		u, err = tk.machine.Delta(delta, tk.now)
	} else {
		u, err = tk.machine.SotW(sotw, tk.now)
	}
	if err != nil {
		tk.got = append(tk.got, "ignored")
		return nil
	}
	tk.update(u)
	return nil
}

func resourceError(part string) (*discoveryv3.ResourceError, error) {
	name, text, _ := strings.Cut(part, ":")
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(`"` + text + `"`)); err != nil {
		return nil, err
	}
	return &discoveryv3.ResourceError{
		ResourceName: &discoveryv3.ResourceName{Name: name},
		ErrorDetail:  &statuspb.Status{Code: int32(code), Message: "why"},
	}, nil
}

// resource builds an entry of a Delta response from a word.
func (tk *talk) resource(typeURL, word string) (*discoveryv3.Resource, error) {
	kind, rest, special := strings.Cut(word, ":")
	switch {
	case !special && word == "nameless":
		return &discoveryv3.Resource{Resource: &anypb.Any{TypeUrl: typeURL}}, nil
	case kind == "wrong":
		return &discoveryv3.Resource{Name: rest, Resource: &anypb.Any{TypeUrl: "other", Value: body(rest, "")}}, nil
	case kind == "cut":
		return &discoveryv3.Resource{Name: rest, Resource: &anypb.Any{TypeUrl: typeURL, Value: append(body(rest, ""), 0x1a, 9)}}, nil
	case kind == "beat":
		rest, ttl, _ := strings.Cut(rest, ":")
		name, version, _ := strings.Cut(rest, "@")
		if ttl == "" {
			return &discoveryv3.Resource{Name: name, Version: version}, nil
		}
		d, err := time.ParseDuration(ttl)
		return &discoveryv3.Resource{Name: name, Version: version, Ttl: durationpb.New(d)}, err
	}
	name, content, ok := strings.Cut(kind, "@")
	if !ok {
		return nil, fmt.Errorf("%q is no part of a response", word)
	}
	w := &discoveryv3.Resource{Name: name, Version: content, Resource: &anypb.Any{TypeUrl: typeURL, Value: body(name, content)}}
	tk.contents[string(w.GetResource().GetValue())] = content
	if ttl, ok := strings.CutPrefix(rest, "ttl="); ok {
		d, err := time.ParseDuration(ttl)
		if err != nil {
			return nil, err
		}
		w.Ttl = durationpb.New(d)
	}
	return w, nil
}

// body is the wire form of a resource with a name and an unknown field.
func body(name, content string) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	return protowire.AppendString(protowire.AppendTag(b, 1000, protowire.BytesType), content)
}

// update records the outputs of a response.
func (tk *talk) update(u *Response) {
	say := func(word string, list []string) {
		if len(list) > 0 {
			slices.Sort(list)
			tk.got = append(tk.got, word+" "+strings.Join(list, " "))
		}
	}
	var put, refresh []string
	for _, r := range u.Resources {
		word := r.Name + "@" + tk.contents[string(r.Body.GetValue())]
		if r.TTL() > 0 {
			word += fmt.Sprintf(" until +%v", r.Deadline().Sub(tk.now))
		}
		put = append(put, word)
	}
	for _, r := range u.Heartbeats {
		which := r.Name + "@" + r.Version
		if r.AnyVersion {
			which = r.Name + " as accepted"
		}
		refresh = append(refresh, fmt.Sprintf("%s until +%v", which, r.Deadline.Sub(tk.now)))
	}
	say("put", put)
	say("remove", slices.Clone(u.Removed))
	say("refresh", refresh)
	if u.Complete {
		tk.got = append(tk.got, "complete")
	}
	for _, e := range u.Errors {
		tk.got = append(tk.got, strings.TrimSpace("error "+e.Name))
	}
}

// A Delta request has the difference from the last request, not the steps in between.
func TestNamesThatComeAndGoBetweenTwoRequestsAreNotSent(t *testing.T) {
	tk := newTalk(xds.Delta, true)
	tk.want(xds.EndpointType, true, []string{"a"})
	tk.drain()
	tk.want(xds.EndpointType, true, []string{"b"})
	tk.want(xds.EndpointType, false, []string{"b"})
	tk.want(xds.EndpointType, false, []string{"a"})
	tk.want(xds.EndpointType, true, []string{"a", "*"})
	tk.want(xds.EndpointType, false, []string{"*"})
	tk.drain()
	if want := []string{"EDS sub=a"}; !slices.Equal(tk.got, want) {
		t.Errorf("got %q, want %q", tk.got, want)
	}
}
