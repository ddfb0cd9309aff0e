package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Update is what one response says. Nonce, with Type, names it in Verdict.
type Update struct {
	Type, Nonce string
	// Put lists the resources that are well-formed, each name once; Remove the
	// names that the server says do not exist.
	Put    []*xds.Resource
	Remove []string
	// Complete says that Put is everything of the type (design.md I3).
	Complete bool
	// Wildcard says that it answers, in part or as a whole, the request for
	// everything of the type; Silent that it is no response: the server said
	// nothing of the names in Errors.
	Wildcard, Silent bool
	Refresh          []Refresh
	// Errors lists what could not be used, and what the server reported.
	Errors []ResourceError
}

// Refresh is a heartbeat: the TTL of a resource starts again.
type Refresh struct {
	Name, Version string
	TTL           time.Duration
	Deadline      time.Time
}

// ResourceError is an error about one resource; Name is "" if it has none.
type ResourceError struct {
	Name string
	Err  error
}

// ingest gathers the resources of one response.
type ingest struct {
	update *Update
	seen   map[string]int // times that a name came
	bad    []string       // reasons to NACK
}

func newIngest(sub *subscription, nonce string, size int) *ingest {
	return &ingest{
		update: &Update{Type: sub.url, Nonce: nonce, Put: make([]*xds.Resource, 0, size)},
		seen:   make(map[string]int, size),
	}
}

// take adds one entry, as internal/xds read it.
func (in *ingest) take(sub *subscription, r *xds.Resource, err error) {
	name := ""
	if r != nil {
		name = r.Name
	}
	if errors.Is(err, xds.ErrHeartbeat) && r.TTL > 0 {
		in.update.Refresh = append(in.update.Refresh, Refresh{Name: name, Version: r.UpstreamVersion, TTL: r.TTL, Deadline: r.Deadline})
		return
	}
	if name != "" {
		in.seen[name]++ // malformed or not
	}
	switch {
	case err != nil:
		in.refuse(sub, name, err)
	case in.seen[name] == 1:
		in.update.Put = append(in.update.Put, r)
	}
}

func (in *ingest) refuse(sub *subscription, name string, err error) {
	in.update.Errors = append(in.update.Errors, ResourceError{Name: name, Err: err})
	in.bad = append(in.bad, err.Error())
	if name != "" {
		sub.broken[name] = struct{}{}
	}
}

// finish takes out what came twice: which of them is meant cannot be told
// (protocol.md 1.10, 3.7).
func (in *ingest) finish(sub *subscription) {
	if hasDuplicates(in.seen) {
		kept := in.update.Put[:0]
		for _, r := range in.update.Put {
			if n := in.seen[r.Name]; n > 1 {
				in.refuse(sub, r.Name, fmt.Errorf("%s %q: %d times in one response", xds.Short(sub.url), r.Name, n))
				continue
			}
			kept = append(kept, r)
		}
		in.update.Put = kept
	}
	for _, r := range in.update.Put {
		delete(sub.broken, r.Name)
		sub.spoke(r)
	}
	for _, name := range in.update.Remove {
		delete(sub.broken, name)
		sub.heard(name)
	}
	for _, e := range in.update.Errors {
		delete(sub.asked, e.Name)
	}
}

func hasDuplicates(seen map[string]int) bool {
	for _, n := range seen {
		if n > 1 {
			return true
		}
	}
	return false
}

// report takes in what the server says went wrong with single resources. What is
// held of them stays in use, and that they are missing says nothing (protocol.md
// 3.14).
func (in *ingest) report(sub *subscription, errs []*discoveryv3.ResourceError) {
	for _, e := range errs {
		name := e.GetResourceName().GetName()
		if name != "" {
			sub.broken[name] = struct{}{}
		}
		in.update.Errors = append(in.update.Errors, ResourceError{
			Name: name,
			Err:  &reported{codes.Code(e.GetErrorDetail().GetCode()), e.GetErrorDetail().GetMessage()},
		})
	}
}

// reported is what a server says is wrong with a resource. One with NOT_FOUND is
// xds.ErrNotFound; no other code says that a resource does not exist (protocol.md
// 3.14).
type reported struct {
	code    codes.Code
	message string
}

func (e *reported) Error() string { return fmt.Sprintf("control plane: %s: %s", e.code, e.message) }
func (e *reported) Is(target error) bool {
	return target == xds.ErrNotFound && e.code == codes.NotFound
}

// SotW takes in a SotW response and returns what it says, or an error for one
// that answers no subscription.
func (s *Session) SotW(resp *discoveryv3.DiscoveryResponse, now time.Time) (*Update, error) {
	sub := s.types[resp.GetTypeUrl()]
	if sub == nil || !sub.started {
		return nil, unsolicited(resp.GetTypeUrl())
	}
	in := newIngest(sub, resp.GetNonce(), len(resp.GetResources()))
	read := make(map[*anypb.Any]*xds.Resource, len(resp.GetResources()))
	for _, entry := range resp.GetResources() {
		r, err := sub.reread(entry, resp.GetVersionInfo())
		if r == nil {
			r, err = xds.FromAny(sub.url, resp.GetVersionInfo(), entry, now)
		}
		in.take(sub, r, err)
		if err == nil && entry.GetTypeUrl() != xds.WrapperType {
			read[entry] = r
		}
	}
	sub.read = read
	in.report(sub, resp.GetResourceErrors())
	in.finish(sub)
	if xds.FullState(sub.url) && len(in.update.Errors) == 0 && len(in.update.Refresh) == 0 {
		// A response with a part that cannot be read, or that the server could
		// not make, says nothing of what is missing from the rest.
		s.absent(sub, in.update, now)
	}
	in.update.Wildcard = sub.toldAll
	// Only the newest response of a type can be answered (protocol.md 1.6).
	sub.answers = sub.answers[:0]
	sub.receive(in, resp.GetVersionInfo(), now, s.cfg.AckTimeout)
	return in.update, nil
}

// reread returns a resource that is in the response as it was in the one before, nil for
// another: what it was read from is the same to the pointer, since what is held is shared
// (package upstream/codec). Only its version is the response's.
func (sub *subscription) reread(entry *anypb.Any, version string) (*xds.Resource, error) {
	r := sub.read[entry]
	if r == nil || r.UpstreamVersion == version {
		return r, nil
	}
	again := *r
	again.UpstreamVersion = version
	return &again, nil
}

// absent notes what a full-state response does not hold: everything else under a
// wildcard, and names that were asked for before it was made. Of those that were
// asked for late that cannot be known of the first such response.
func (s *Session) absent(sub *subscription, u *Update, now time.Time) {
	if sub.toldAll {
		u.Complete = true
		clear(sub.broken)
	}
	present := make(map[string]struct{}, len(u.Put))
	for _, r := range u.Put {
		present[r.Name] = struct{}{}
		present[xds.CollectionOf(r.Name)] = struct{}{}
		for _, alias := range r.Aliases {
			present[alias] = struct{}{}
		}
	}
	for name := range sub.names {
		if _, here := present[name]; here {
			continue
		}
		l, isLate := sub.late[name]
		overdue := !l.until.After(now)
		switch {
		case isLate && !l.missed && !overdue:
			sub.late[name] = late{until: l.until, missed: true}
		case isLate && !overdue && s.holds(sub, name):
			// The response that it is in may still come.
		case !isLate || s.lost(sub, name):
			u.Remove = append(u.Remove, name)
			delete(sub.asked, name)
		}
	}
	slices.Sort(u.Remove)
}

// Delta takes in a Delta response and returns what it says, or an error for one
// that answers no subscription.
func (s *Session) Delta(resp *discoveryv3.DeltaDiscoveryResponse, now time.Time) (*Update, error) {
	sub := s.types[resp.GetTypeUrl()]
	if sub == nil || !sub.started {
		return nil, unsolicited(resp.GetTypeUrl())
	}
	in := newIngest(sub, resp.GetNonce(), len(resp.GetResources()))
	for _, entry := range resp.GetResources() {
		r, err := xds.FromWrapper(sub.url, entry, now)
		in.take(sub, r, err)
	}
	removed := resp.GetRemovedResources()
	if len(removed) == 0 {
		for _, n := range resp.GetRemovedResourceNames() {
			removed = append(removed, n.GetName())
		}
	}
	for _, name := range removed {
		if _, err := xds.CheckName(name); err != nil {
			in.refuse(sub, "", fmt.Errorf("removed resource: %w", err))
			continue
		}
		if in.seen[name] > 0 {
			// Both added and removed: neither is believed.
			in.seen[name]++
			continue
		}
		in.update.Remove = append(in.update.Remove, name)
	}
	in.report(sub, resp.GetResourceErrors())
	in.finish(sub)
	if sub.toldAll {
		in.update.Wildcard = true
		sub.settleAt = now.Add(s.cfg.Settle)
	}
	sub.receive(in, "", now, s.cfg.AckTimeout)
	return in.update, nil
}

// receive begins to wait for the verdict on a response. One that is malformed is
// refused at once, with every reason (protocol.md 7.3).
func (sub *subscription) receive(in *ingest, version string, now time.Time, timeout time.Duration) {
	sub.nonce = in.update.Nonce
	a := &answer{nonce: sub.nonce, version: version, at: now.Add(timeout)}
	if version != "" && xds.FullState(sub.url) {
		for _, r := range in.update.Put {
			a.holds = append(a.holds, r.Name)
		}
		slices.Sort(a.holds)
	}
	if len(in.bad) > 0 {
		sub.refuse(a, strings.Join(in.bad, "; "), now)
	}
	sub.answers = append(sub.answers, a)
}

// SotW writes the request in SotW form, with a Node or nil.
func (r *Request) SotW(node *corev3.Node) *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{
		Node:          node,
		TypeUrl:       r.Type,
		VersionInfo:   r.Version,
		ResponseNonce: r.Nonce,
		ResourceNames: r.Names,
		ErrorDetail:   r.errorDetail(),
	}
}

// Delta writes the request in Delta form, with a Node or nil.
func (r *Request) Delta(node *corev3.Node) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{
		Node:                     node,
		TypeUrl:                  r.Type,
		ResponseNonce:            r.Nonce,
		ResourceNamesSubscribe:   r.Subscribe,
		ResourceNamesUnsubscribe: r.Unsubscribe,
		InitialResourceVersions:  r.Initial,
		ErrorDetail:              r.errorDetail(),
	}
}

func (r *Request) errorDetail() *statuspb.Status {
	if r.NACK == "" {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.InvalidArgument), Message: r.NACK}
}
