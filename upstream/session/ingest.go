package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

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

// Invalid counts the resources of the response that cannot be used. Those for which the server reports an error are not
// in the response.
func (r *Response) Invalid() (n int) {
	for _, e := range r.Errors {
		if _, is := errors.AsType[*reported](e.Err); !is {
			n++
		}
	}
	return n
}

// ingest collects the resources of one response.
type ingest struct {
	update *Response
	check  func(*xds.Resource) error // Config.Check
	// ackedVersion is set for a SotW response with the version_info of an ACKed response.
	ackedVersion bool
	// changed lists the resources of the update that differ from those of the previous response.
	changed []*xds.Resource
	// times counts how often each name occurred in the response; nil if the response has one name.
	// A name of a resource that is not in changed is left out as long as it occurred once.
	times    map[string]int
	repeated bool // some name occurred more than once
	// sotw is set for a SotW response of more than one name, and differ then has the names of which it has different contents.
	sotw    bool
	differ  map[string]bool
	reasons []string // reasons to NACK
}

// ingest begins a response with size entries. It returns an error if the type was not requested:
// then there is no subscription on which the response could be NACKed.
func (s *Session) ingest(typeURL, nonce string, size int) (*subscription, ingest, error) {
	sub := s.types[typeURL]
	if sub == nil || !sub.started {
		return nil, ingest{}, fmt.Errorf("response of a type that was not requested: %q", typeURL)
	}
	s.answered = true
	update := &Response{Update: xds.Update{Type: typeURL, Resources: make([]*xds.Resource, 0, size)}, Nonce: nonce}
	return sub, ingest{update: update, check: s.cfg.Check}, nil
}

// count counts a name and returns how often it has occurred.
func (in *ingest) count(name string) int {
	if in.times == nil {
		return 1
	}
	in.times[name]++
	in.repeated = in.repeated || in.times[name] > 1
	return in.times[name]
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
	if err == nil && in.check != nil {
		err = in.check(r)
	}
	times := 1
	if name != "" || err == nil {
		times = in.count(name) // malformed or not
	}
	switch {
	case err != nil:
		in.reject(sub, name, err)
	case times > 1 && in.sotw:
		for _, other := range in.update.Resources {
			if other.Name == name && other.Version != r.Version {
				in.differ[name] = true
			}
		}
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

// finish decides about resources whose name occurs twice (protocol.md 1.10, 3.7), and ends the wait for the
// names of the response.
func (in *ingest) finish(sub *subscription) {
	in.countSame()
	if in.repeated {
		in.takeFirst(sub)
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

// takeFirst leaves of each name that occurs twice the first resource, as Envoy does in SotW; in Delta, where Envoy rejects the whole response,
// none. Copies of the same content are no error in SotW, as for Envoy (endpoints, routes); of different ones nobody knows which is meant, so
// that the server is told.
func (in *ingest) takeFirst(sub *subscription) {
	first := make(map[string]*xds.Resource)
	for _, r := range in.update.Resources {
		if first[r.Name] == nil {
			first[r.Name] = r
		}
	}
	told := make(map[string]bool)
	in.update.Resources = slices.DeleteFunc(in.update.Resources, func(r *xds.Resource) bool {
		n := in.times[r.Name]
		if n < 2 {
			return false
		}
		differ := !in.sotw || r.Version != first[r.Name].Version || in.differ[r.Name]
		if differ && !told[r.Name] {
			told[r.Name] = true
			in.reject(sub, r.Name, fmt.Errorf("%s %q: %d times in one response", xds.Short(sub.url), r.Name, n))
		}
		return !in.sotw || r != first[r.Name]
	})
}

// countSame counts the names of unchanged resources that are also names of changed ones. In a
// push of everything there are few of the latter.
func (in *ingest) countSame() {
	changed := in.changed
	if len(in.times) == 0 || len(changed) == len(in.update.Resources) {
		return
	}
	for _, r := range in.update.Resources {
		if len(changed) > 0 && changed[0] == r {
			changed = changed[1:]
			continue
		}
		if in.times[r.Name] > 0 {
			in.count(r.Name)
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

// SotW processes a SotW response and returns the update in it; an error if the type was not requested.
func (s *Session) SotW(resp *discoveryv3.DiscoveryResponse, now time.Time) (*Response, error) {
	s.identify(resp.GetControlPlane())
	sub, in, err := s.ingest(resp.GetTypeUrl(), resp.GetNonce(), len(resp.GetResources()))
	if err != nil {
		return nil, err
	}
	if len(resp.GetResources()) > 1 {
		in.times, in.sotw, in.differ = make(map[string]int), true, make(map[string]bool)
	}
	in.ackedVersion = s.isAckedVersion(sub, resp.GetVersionInfo())
	sub.read.begin(len(resp.GetResources()))
	for _, entry := range resp.GetResources() {
		if r, again := sub.read.find(entry); again {
			in.count(r.Name)
		} else if r != nil {
			in.update.Resources = append(in.update.Resources, r)
		} else if entry.GetTypeUrl() == xds.WrapperType {
			r, err := xds.FromAny(sub.url, resp.GetVersionInfo(), entry, now)
			in.add(sub, r, err)
		} else {
			r, err := xds.FromAny(sub.url, xds.OfResponse, entry, now)
			in.add(sub, r, err)
			if err == nil {
				sub.read.of[entry] = &reading{r, sub.read.response}
				sub.read.found++
			}
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
	if len(in.update.Errors) > 0 || in.repeated {
		sub.read = readings{}
	}
	// Only the newest response of a type can be answered (protocol.md 1.6).
	sub.answers = sub.answers[:0]
	s.awaitAnswer(sub, &in, resp.GetVersionInfo(), now)
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

// Delta processes a Delta response and returns the update in it; an error if the type was not
// requested.
func (s *Session) Delta(resp *discoveryv3.DeltaDiscoveryResponse, now time.Time) (*Response, error) {
	s.identify(resp.GetControlPlane())
	sub, in, err := s.ingest(resp.GetTypeUrl(), resp.GetNonce(), len(resp.GetResources()))
	if err != nil {
		return nil, err
	}
	removed := resp.GetRemovedResources()
	if len(removed) == 0 {
		for _, n := range resp.GetRemovedResourceNames() {
			removed = append(removed, n.GetName())
		}
	}
	if n := len(resp.GetResources()); n > 0 && n+len(removed) > 1 {
		in.times = make(map[string]int, n)
	}
	for _, entry := range resp.GetResources() {
		r, err := xds.FromWrapper(sub.url, entry, now)
		in.add(sub, r, err)
	}
	for _, name := range removed {
		if _, err := xds.CheckName(name); err != nil {
			in.reject(sub, "", fmt.Errorf("removed resource: %w", err))
			continue
		}
		name = xds.CanonicalName(name) // protocol.md 8.7
		if in.times[name] > 0 {
			in.count(name) // both added and removed: both are ignored
		} else {
			in.update.Removed = append(in.update.Removed, name)
		}
	}
	in.report(sub, resp.GetResourceErrors())
	in.finish(sub)
	if sub.sentWildcard {
		in.update.Wildcard = true
		if sub.completeBy.IsZero() {
			sub.completeBy = now.Add(maxQuietTime)
		}
		sub.completeAt = wake.Earliest(now.Add(QuietTime), sub.completeBy)
	}
	s.awaitAnswer(sub, &in, "", now)
	return in.update, nil
}

// awaitAnswer starts to wait for the clients' ACK or NACK of a response. A response with invalid
// resources is NACKed at once, with every reason (protocol.md 7.3).
func (s *Session) awaitAnswer(sub *subscription, in *ingest, version string, now time.Time) {
	sub.nonce, sub.silentAt = in.update.Nonce, time.Time{}
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
	code := codes.InvalidArgument
	switch r.Type {
	case xds.HealthType:
		code = codes.Internal // as Istio's agent sends it
	case xds.AgentReportType:
		code = codes.OK
	}
	return &statuspb.Status{Code: int32(code), Message: r.NACK}
}

// readings caches the resources that the bare entries of the last SotW response were read as. A push
// of everything has mostly the same entries as the previous push, at the same addresses, because
// package upstream/codec shares entries that are cached. Those need not be read and hashed again.
type readings struct {
	of map[*anypb.Any]*reading
	// response counts the responses; found counts the entries of this response that are in of.
	response uint64
	found    int
}

// reading is the resource that an entry was read as, and the number of the last response that
// contained the entry.
type reading struct {
	res      *xds.Resource
	response uint64
}

func (rs *readings) begin(size int) {
	if rs.of == nil {
		rs.of = make(map[*anypb.Any]*reading, size)
	}
	rs.response++
	rs.found = 0
}

// find returns the resource that an entry was read as in the previous response; nil if the entry
// was not in it. again is set if the entry has occurred in this response already.
func (rs *readings) find(entry *anypb.Any) (r *xds.Resource, again bool) {
	known := rs.of[entry]
	if known == nil {
		return nil, false
	}
	if again = known.response == rs.response; !again {
		known.response = rs.response
		rs.found++
	}
	return known.res, again
}

// end forgets the entries that are not in this response.
func (rs *readings) end() {
	if len(rs.of) > rs.found {
		maps.DeleteFunc(rs.of, func(_ *anypb.Any, is *reading) bool { return is.response != rs.response })
	}
}
