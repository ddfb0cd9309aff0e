package xds

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Resource is one version of one xDS resource. It must not be changed after it was handed on,
// because all streams share it, in both wire forms. There are so many that its size matters: 112
// bytes.
type Resource struct {
	// Type is the type URL, Name the resource name; together they are the key.
	Type, Name string
	// Version is the content hash, and the only version that clients get (protocol.md 7.5).
	Version string
	// UpstreamVersion is the version that the upstream issued. It goes back to that upstream only,
	// in initial_resource_versions (design.md I2).
	UpstreamVersion string
	// Body is the resource as the upstream sent it. nil says that the upstream resolved an alias to
	// nothing (protocol.md 3.15).
	Body *anypb.Any
	// EDSName is the name of the endpoints of a cluster of type EDS; "" for every other resource.
	EDSName string
	// Extra has the optional fields, which few resources have; nil for none. It must not be changed
	// either. Methods of Resource read it.
	Extra *Extra
	// GoesStale says that a client uses the endpoints only for a time, which begins again whenever they come (endpoint_stale_after of
	// a ClusterLoadAssignment's policy).
	GoesStale bool
	// Wrapped says that the body does not have the name, so that SotW needs a wrapper for it.
	Wrapped bool
}

// Extra has the optional fields of a resource.
type Extra struct {
	// Aliases are further names that a subscription may use for this resource.
	Aliases []string
	// TTL is the lifetime that the upstream set, 0 for none. Deadline is when it ends, counted from
	// when the upstream last sent or refreshed the resource (design.md I8).
	TTL      time.Duration
	Deadline time.Time
	// CacheControl and Metadata are passed on unchanged; nil for none.
	CacheControl *discoveryv3.Resource_CacheControl
	Metadata     *corev3.Metadata
}

// extra returns the optional fields; it is never nil.
func (r *Resource) extra() *Extra {
	if r.Extra == nil {
		return &noExtra
	}
	return r.Extra
}

var noExtra Extra

// Aliases are further names that a subscription may use for this resource.
func (r *Resource) Aliases() []string { return r.extra().Aliases }

// TTL is the lifetime that the upstream set; 0 for none.
func (r *Resource) TTL() time.Duration { return r.extra().TTL }

// Deadline is the time at which the TTL ends; the zero time for none.
func (r *Resource) Deadline() time.Time { return r.extra().Deadline }

// CacheControl is passed on unchanged; nil for none.
func (r *Resource) CacheControl() *discoveryv3.Resource_CacheControl { return r.extra().CacheControl }

// Metadata is passed on unchanged; nil for none.
func (r *Resource) Metadata() *corev3.Metadata { return r.extra().Metadata }

// WithLifetime returns a copy of the resource with another TTL and deadline.
func (r *Resource) WithLifetime(ttl time.Duration, deadline time.Time) *Resource {
	same, extra := *r, *r.extra()
	extra.TTL, extra.Deadline = ttl, deadline
	same.setExtra(extra)
	return &same
}

// setExtra sets the optional fields, or nil if all are empty.
func (r *Resource) setExtra(e Extra) {
	if r.Extra = nil; len(e.Aliases) > 0 || e.TTL != 0 || !e.Deadline.IsZero() || e.CacheControl != nil || e.Metadata != nil {
		kept := e // on the heap only here
		r.Extra = &kept
	}
}

// OfResponse is the UpstreamVersion of a bare resource in a SotW response, which has no version of
// its own: that of the response changes with every other resource in it.
const OfResponse = "holdfast:of-the-response"

// ErrHeartbeat says that a wrapper carries no body: it refreshes the TTL of the version that it names
// (protocol.md 6.1).
var ErrHeartbeat = errors.New("resource has no body")

// FromAny makes a resource of an entry of a SotW response: either the bare resource, whose name is
// in its body, or a wrapper (protocol.md 1.14). typeURL and version are those of the response. The
// deadline of a TTL counts from now.
//
// The error names the resource if its name could be read. For a wrapper without a body FromAny
// returns a resource with the name and version, and ErrHeartbeat.
func FromAny(typeURL, version string, entry *anypb.Any, now time.Time) (*Resource, error) {
	if entry.GetTypeUrl() == WrapperType {
		var wrapper discoveryv3.Resource
		if err := proto.Unmarshal(entry.GetValue(), &wrapper); err != nil {
			return nil, fmt.Errorf("resource wrapper: %w", err)
		}
		if wrapper.GetVersion() == "" {
			wrapper.Version = version
		}
		return FromWrapper(typeURL, &wrapper, now)
	}
	if err := checkType(typeURL, entry); err != nil {
		return nil, err
	}
	name, err := nameIn(typeURL, entry)
	if err != nil {
		return nil, fmt.Errorf("%s resource: %w", Short(typeURL), err)
	}
	return finish(&Resource{Type: typeURL, Name: name, UpstreamVersion: version, Body: entry})
}

// FromWrapper makes a resource of an entry of a Delta response, or of a SotW wrapper. The name is
// that of the wrapper or, if it is empty, of the body. See FromAny for the arguments and errors.
func FromWrapper(typeURL string, w *discoveryv3.Resource, now time.Time) (*Resource, error) {
	r := &Resource{
		Type:            typeURL,
		Name:            cmp.Or(w.GetName(), w.GetResourceName().GetName()),
		UpstreamVersion: w.GetVersion(),
		Body:            w.GetResource(),
	}
	if w.GetResourceName().GetDynamicParameterConstraints() != nil {
		// Two variants of one name cannot be told apart by name (protocol.md 8.8).
		return r, fmt.Errorf("%s %q: dynamic parameter constraints are not supported", Short(typeURL), r.Name)
	}
	if r.Body != nil {
		if err := checkType(typeURL, r.Body); err != nil {
			return r, fmt.Errorf("%q: %w", r.Name, err)
		}
		if r.Name == "" {
			var err error
			if r.Name, err = nameIn(typeURL, r.Body); err != nil {
				return nil, fmt.Errorf("%s resource: %w", Short(typeURL), err)
			}
		} else {
			inBody, err := scanName(r.Body)
			if errors.Is(err, ErrMalformed) {
				return r, fmt.Errorf("%s %q: %w", Short(typeURL), r.Name, err)
			}
			r.Wrapped = err != nil || string(inBody) != r.Name
		}
	}
	if _, err := CheckName(r.Name); err != nil && (r.Name != "" || !Nameless(typeURL)) {
		return nil, fmt.Errorf("%s resource: %w", Short(typeURL), err)
	}
	r.Name = CanonicalName(r.Name) // also of a heartbeat, which does not get as far as finish
	extra := Extra{Aliases: CanonicalNames(w.GetAliases()), CacheControl: w.GetCacheControl(), Metadata: w.GetMetadata()}
	if ttl := w.GetTtl(); ttl != nil {
		if err := ttl.CheckValid(); err != nil || ttl.AsDuration() <= 0 {
			return r, fmt.Errorf("%s %q: ttl of %d.%09d s: want a positive duration", Short(typeURL), r.Name, ttl.GetSeconds(), ttl.GetNanos())
		}
		extra.TTL = ttl.AsDuration()
		extra.Deadline = now.Add(extra.TTL)
	}
	r.setExtra(extra)
	// A VirtualHost without a body resolves an alias to nothing; of every other type it is a
	// heartbeat, unless it lists aliases (protocol.md 3.15, 6.7).
	if r.Body == nil && typeURL != VirtualHostType && len(extra.Aliases) == 0 {
		return r, fmt.Errorf("%s %q: %w", Short(typeURL), r.Name, ErrHeartbeat)
	}
	return finish(r)
}

func checkType(typeURL string, body *anypb.Any) error {
	if got := body.GetTypeUrl(); got != typeURL {
		return fmt.Errorf("resource of type %q in a response of type %q", got, typeURL)
	}
	return nil
}

// finish sets the fields that derive from the others.
func finish(r *Resource) (*Resource, error) {
	r.Name = CanonicalName(r.Name)
	if r.Type == ClusterType && r.Body != nil {
		var err error
		if r.EDSName, err = EDSName(r.Name, r.Body.GetValue()); err != nil {
			return r, err
		}
	}
	if r.Type == EndpointType && r.Body != nil {
		r.GoesStale = goesStale(r.Body.GetValue())
	}
	r.Version = contentHash(r)
	return r, nil
}

// contentHash returns the version of a resource: a hash of everything that a client can see of it,
// except for the TTL, which may be refreshed.
func contentHash(r *Resource) string {
	var h xxhash.Digest
	h.Reset()
	// Each part begins with its kind and its size, so that two resources differ in their bytes.
	begin := func(kind byte, size int) {
		var head [9]byte
		head[0] = kind
		binary.LittleEndian.PutUint64(head[1:], uint64(size))
		_, _ = h.Write(head[:])
	}
	part := func(kind byte, b []byte) {
		begin(kind, len(b))
		_, _ = h.Write(b)
	}
	text := func(kind byte, s string) {
		begin(kind, len(s))
		_, _ = h.WriteString(s)
	}
	text('n', r.Name)
	if r.Body != nil {
		part('b', r.Body.GetValue())
	}
	for _, a := range r.Aliases() {
		text('a', a)
	}
	// Marshalling cannot fail: the messages were just unmarshalled.
	deterministic := proto.MarshalOptions{Deterministic: true}
	if r.CacheControl() != nil {
		b, _ := deterministic.Marshal(r.CacheControl())
		part('c', b)
	}
	if r.Metadata() != nil {
		b, _ := deterministic.Marshal(r.Metadata())
		part('m', b)
	}
	return hexSum(h.Sum64())
}

// Wrap sets w to the resource as an entry of a Delta response. ttl is the rest of its lifetime, 0
// to send none. The body is shared, not copied.
func (r *Resource) Wrap(w *discoveryv3.Resource, ttl time.Duration) {
	w.Name, w.Version = r.Name, r.Version
	w.Resource = r.Body
	w.Aliases, w.CacheControl, w.Metadata = r.Aliases(), r.CacheControl(), r.Metadata()
	w.Ttl = nil
	if ttl > 0 {
		w.Ttl = durationpb.New(ttl)
	}
}

// Any returns the resource as an entry of a SotW response: the bare body, or a wrapper if the body
// alone would lose the name. SotW never has a TTL (protocol.md 6.4).
func (r *Resource) Any() (*anypb.Any, error) {
	if !r.Wrapped && len(r.Aliases()) == 0 && r.Body != nil {
		return r.Body, nil
	}
	var w discoveryv3.Resource
	r.Wrap(&w, 0)
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&w)
	if err != nil {
		return nil, fmt.Errorf("%s %q: wrapping for SotW: %w", Short(r.Type), r.Name, err)
	}
	return &anypb.Any{TypeUrl: WrapperType, Value: value}, nil
}

// Answers reports whether the resource answers a subscription to a name (protocol.md 3.15).
func (r *Resource) Answers(name string) bool {
	return r.Name == name || slices.Contains(r.Aliases(), name)
}

// Unresolved returns the resource that says that a name does not exist (protocol.md 3.15).
func Unresolved(typeURL, name string) *Resource {
	r := &Resource{Type: typeURL, Name: name, Extra: &Extra{Aliases: []string{name}}}
	r.Version = contentHash(r)
	return r
}

// EmptyRuntime returns a runtime layer without values. A client that ignores the removal of a layer
// gets it instead (protocol.md 6.3).
func EmptyRuntime(name string) *Resource {
	body := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	body = protowire.AppendBytes(protowire.AppendTag(body, 2, protowire.BytesType), nil) // the layer
	r := &Resource{Type: RuntimeType, Name: name, Body: &anypb.Any{TypeUrl: RuntimeType, Value: body}}
	r.Version = contentHash(r)
	return r
}

// SetVersion is the version of a set of resources: a hash of their names and versions that does not
// depend on their order (protocol.md 7.6). The zero value is that of the empty set.
type SetVersion uint64

// Add puts a resource into the set.
func (v *SetVersion) Add(r *Resource) { *v += pairHash(r) }

// Remove removes a resource that was added.
func (v *SetVersion) Remove(r *Resource) { *v -= pairHash(r) }

// String returns the version. It is never empty, not even for the empty set (protocol.md 1.11).
func (v SetVersion) String() string { return hexSum(uint64(v)) }

func pairHash(r *Resource) SetVersion {
	var h xxhash.Digest
	h.Reset()
	_, _ = h.WriteString(r.Name)
	_, _ = h.Write([]byte{0})
	_, _ = h.WriteString(r.Version)
	return SetVersion(h.Sum64())
}

func hexSum(sum uint64) string {
	var raw [8]byte
	var text [2 * len(raw)]byte
	binary.BigEndian.PutUint64(raw[:], sum)
	hex.Encode(text[:], raw[:])
	return string(text[:])
}

// Same reports whether another resource has the name and the content of this one; both are of one type.
func (r *Resource) Same(o *Resource) bool { return o.Name == r.Name && o.Version == r.Version }
