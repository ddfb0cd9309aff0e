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

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Response is the update that one response contains, without the name of the source and
// RequestedAt. Type and Nonce identify the response in Answer.
type Response struct {
	xds.Update
	Nonce string
	// First is set for the first response of the type on the stream.
	First bool
	// Wake is when Next must be called at the latest because of this response.
	Wake time.Time
}

// ingest collects the resources of one response.
type ingest struct {
	update *Response
	// ackedVersion is set for a SotW response with the version_info of an ACKed response.
	ackedVersion bool
	// changed lists the resources of the update that differ from those of the previous response.
	changed []*xds.Resource
	// counts counts how often each name occurred in the response. A name of a resource that is not
	// in changed is left out as long as it occurred once.
	counts  counts
	reasons []string // reasons to NACK
}

// counts counts names, including the name "" (xds.FromAny). Most responses of a Delta server have
// one name, for which no map is made.
type counts struct {
	size int // how many names there may be
	some bool
	one  string // the first name, if some is set
	more map[string]int
}

// add counts a name and returns how often it has occurred.
func (c *counts) add(name string) int {
	switch {
	case !c.some:
		c.some, c.one = true, name
		return 1
	case c.more == nil:
		c.more = make(map[string]int, c.size)
		c.more[c.one] = 1
	}
	c.more[name]++
	return c.more[name]
}

// of returns how often a name was counted.
func (c *counts) of(name string) int {
	if c.more == nil && c.some && c.one == name {
		return 1
	}
	return c.more[name]
}

// repeated reports whether a name was counted more than once.
func (c *counts) repeated() bool {
	for _, n := range c.more {
		if n > 1 {
			return true
		}
	}
	return false
}

func newIngest(sub *subscription, nonce string, size int) *ingest {
	return &ingest{
		update: &Response{Update: xds.Update{Type: sub.url, Resources: make([]*xds.Resource, 0, size)}, Nonce: nonce},
	}
}

// add adds an entry, as internal/xds read it.
func (in *ingest) add(sub *subscription, r *xds.Resource, err error) {
	name := ""
	if r != nil {
		name = r.Name
	}
	if errors.Is(err, xds.ErrHeartbeat) && r.TTL() > 0 {
		in.update.Heartbeats = append(in.update.Heartbeats, xds.Heartbeat{Name: name, Version: r.UpstreamVersion, AnyVersion: in.ackedVersion, TTL: r.TTL(), Deadline: r.Deadline()})
		return
	}
	times := 1
	if name != "" || err == nil {
		times = in.counts.add(name) // malformed or not
	}
	switch {
	case err != nil:
		in.reject(sub, name, err)
	case times == 1:
		in.update.Resources = append(in.update.Resources, r)
		in.changed = append(in.changed, r)
	}
}

func (in *ingest) reject(sub *subscription, name string, err error) {
	in.update.Errors = append(in.update.Errors, xds.ResourceError{Name: name, Err: err})
	in.reasons = append(in.reasons, err.Error())
	if name != "" {
		sub.invalid[name] = struct{}{}
	}
}

// finish removes resources whose name occurs twice, because it is unknown which one is meant
// (protocol.md 1.10, 3.7).
func (in *ingest) finish(sub *subscription) {
	in.countSame()
	if in.counts.repeated() {
		twice := func(r *xds.Resource) bool { return in.counts.of(r.Name) > 1 }
		for _, r := range in.update.Resources {
			if twice(r) {
				in.reject(sub, r.Name, fmt.Errorf("%s %q: %d times in one response", xds.Short(sub.url), r.Name, in.counts.of(r.Name)))
			}
		}
		in.update.Resources = slices.DeleteFunc(in.update.Resources, twice)
	}
	if len(sub.invalid)+len(sub.awaited)+len(sub.lateNames) > 0 {
		for _, r := range in.update.Resources {
			delete(sub.invalid, r.Name)
			sub.answeredBy(r)
		}
	}
	for _, name := range in.update.Removed {
		delete(sub.invalid, name)
		sub.answeredName(name)
	}
	for _, e := range in.update.Errors {
		delete(sub.awaited, e.Name)
	}
}

// countSame counts the names of unchanged resources that are also names of changed ones. In a
// push of everything there are few of the latter.
func (in *ingest) countSame() {
	changed := in.changed
	if !in.counts.some || len(changed) == len(in.update.Resources) {
		return
	}
	for _, r := range in.update.Resources {
		if len(changed) > 0 && changed[0] == r {
			changed = changed[1:]
			continue
		}
		if in.counts.of(r.Name) > 0 {
			in.counts.add(r.Name)
		}
	}
}

// report processes the errors that the server reports for single resources. The cached version of
// such a resource stays in use, and its absence from the response does not mean that it was removed
// (protocol.md 3.14).
func (in *ingest) report(sub *subscription, errs []*discoveryv3.ResourceError) {
	for _, e := range errs {
		name := xds.CanonicalName(e.GetResourceName().GetName())
		if name != "" {
			sub.invalid[name] = struct{}{}
		}
		in.update.Errors = append(in.update.Errors, xds.ResourceError{
			Name: name,
			Err:  &reported{codes.Code(e.GetErrorDetail().GetCode()), redact.Line(e.GetErrorDetail().GetMessage())},
		})
	}
}

// reported is an error that a server reports for a resource. One with the code NOT_FOUND is
// xds.ErrNotFound; no other code means that a resource does not exist (protocol.md 3.14).
type reported struct {
	code    codes.Code
	message string
}

func (e *reported) Error() string { return fmt.Sprintf("control plane: %s: %s", e.code, e.message) }
func (e *reported) Is(target error) bool {
	return target == xds.ErrNotFound && e.code == codes.NotFound
}

// SotW processes a SotW response and returns the update in it, or an error if the response
// belongs to no subscription.
func (s *Session) SotW(resp *discoveryv3.DiscoveryResponse, now time.Time) (*Response, error) {
	sub, err := s.requested(resp.GetTypeUrl())
	if err != nil {
		return nil, err
	}
	s.answered = true
	in := newIngest(sub, resp.GetNonce(), len(resp.GetResources()))
	in.ackedVersion = s.isAckedVersion(sub, resp.GetVersionInfo())
	sub.read.begin(len(resp.GetResources()))
	for _, entry := range resp.GetResources() {
		if r, again := sub.read.find(entry); again {
			in.counts.add(r.Name)
		} else if r != nil {
			in.update.Resources = append(in.update.Resources, r)
		} else if entry.GetTypeUrl() == xds.WrapperType {
			r, err := xds.FromAny(sub.url, resp.GetVersionInfo(), entry, now)
			in.add(sub, r, err)
		} else {
			r, err := xds.FromAny(sub.url, xds.OfResponse, entry, now)
			in.add(sub, r, err)
			sub.read.add(entry, r, err)
		}
	}
	sub.read.end()
	in.report(sub, resp.GetResourceErrors())
	in.finish(sub)
	if xds.FullState(sub.url) && len(in.update.Errors) == 0 && len(in.update.Heartbeats) == 0 {
		// If a part of a response cannot be read, or the server could not make it, resources
		// missing from the rest do not count as removed.
		s.recordAbsent(sub, in.update, now)
	}
	in.update.Wildcard = sub.sentWildcard
	if len(in.update.Errors) > 0 {
		sub.read = readings{}
	}
	// Only the newest response of a type can be answered (protocol.md 1.6).
	sub.answers = sub.answers[:0]
	s.awaitAnswer(sub, in, resp.GetVersionInfo(), now)
	return in.update, nil
}

// isAckedVersion reports whether a SotW version_info is that of the last ACKed response, or of a
// later response that is not NACKed. In such a response a wrapper without a body is a heartbeat,
// whatever version the wrapper has: Envoy 1.40 compares version_info only (protocol.md 6.1).
func (s *Session) isAckedVersion(sub *subscription, version string) bool {
	if version == "" {
		return false
	}
	newer := func(a *answer) bool { return a.version == version && a.nack == "" }
	return s.cfg.Versions[sub.url].Info == version || slices.ContainsFunc(sub.answers, newer)
}

// recordAbsent records what a full-state response removes by leaving it out: every other resource if
// the wildcard is subscribed, and otherwise the subscribed names. For names that were requested late,
// the first such response may have been made before the request.
func (s *Session) recordAbsent(sub *subscription, update *Response, now time.Time) {
	if sub.sentWildcard {
		update.Complete = true
		clear(sub.invalid)
	}
	if len(sub.names) == 0 {
		return
	}
	present := make(map[string]struct{}, len(update.Resources))
	for _, r := range update.Resources {
		present[r.Name] = struct{}{}
		present[xds.CollectionOf(r.Name)] = struct{}{}
		for _, alias := range r.Aliases() {
			present[alias] = struct{}{}
		}
	}
	isCached := s.cached(sub)
	for name := range sub.names {
		if _, found := present[name]; found {
			continue
		}
		l, isLate := sub.lateNames[name]
		overdue := !l.until.After(now)
		switch {
		case isLate && !l.missed && !overdue:
			sub.lateNames[name] = lateName{until: l.until, missed: true}
		case isLate && !overdue && isCached(name):
			// A response that contains the resource may still come.
		case !isLate || sub.isMissing(name, isCached):
			update.Removed = append(update.Removed, name)
			delete(sub.awaited, name)
		}
	}
	slices.Sort(update.Removed)
}

// Delta processes a Delta response and returns the update in it, or an error if the response
// belongs to no subscription.
func (s *Session) Delta(resp *discoveryv3.DeltaDiscoveryResponse, now time.Time) (*Response, error) {
	sub, err := s.requested(resp.GetTypeUrl())
	if err != nil {
		return nil, err
	}
	s.answered = true
	in := newIngest(sub, resp.GetNonce(), len(resp.GetResources()))
	in.counts.size = len(resp.GetResources())
	for _, entry := range resp.GetResources() {
		r, err := xds.FromWrapper(sub.url, entry, now)
		in.add(sub, r, err)
	}
	removed := resp.GetRemovedResources()
	if len(removed) == 0 {
		for _, n := range resp.GetRemovedResourceNames() {
			removed = append(removed, n.GetName())
		}
	}
	for _, name := range removed {
		if _, err := xds.CheckName(name); err != nil {
			in.reject(sub, "", fmt.Errorf("removed resource: %w", err))
			continue
		}
		name = xds.CanonicalName(name) // protocol.md 8.7
		if in.counts.of(name) > 0 {
			// The name is both added and removed: both are ignored.
			in.counts.add(name)
			continue
		}
		in.update.Removed = append(in.update.Removed, name)
	}
	in.report(sub, resp.GetResourceErrors())
	in.finish(sub)
	if sub.sentWildcard {
		in.update.Wildcard = true
		if sub.completeBy.IsZero() {
			sub.completeBy = now.Add(max(maxQuietTime, s.cfg.QuietTime))
		}
		sub.completeAt = wake.Earliest(now.Add(s.cfg.QuietTime), sub.completeBy)
	}
	s.awaitAnswer(sub, in, "", now)
	return in.update, nil
}

// awaitAnswer starts to wait for the clients' ACK or NACK of a response. A response with invalid
// resources is NACKed at once, with every reason (protocol.md 7.3).
func (s *Session) awaitAnswer(sub *subscription, in *ingest, version string, now time.Time) {
	sub.nonce = in.update.Nonce
	in.update.First, sub.answered = !sub.answered, true
	a := &answer{nonce: sub.nonce, version: version, at: now.Add(s.cfg.AckTimeout)}
	if version != "" && xds.FullState(sub.url) {
		for _, r := range in.update.Resources {
			a.contains.Add(r.Name)
		}
	}
	if len(in.reasons) > 0 {
		sub.nack(a, redact.Line(strings.Join(in.reasons, "; ")), now)
	}
	sub.answers = append(sub.answers, a)
	in.update.Wake = wake.Earliest(a.at, sub.completeAt)
	if s.Reopen() {
		in.update.Wake = now
	}
}

// SotW returns the request in SotW form. node may be nil.
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

// Delta returns the request in Delta form. node may be nil.
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
