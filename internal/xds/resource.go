package xds

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Resource is one version of one xDS resource. It is immutable once it was
// handed on, and shared: by every stream, in both wire forms. There are so many that
// its size counts: 112 bytes.
type Resource struct {
	// Type is the type URL, Name the resource name; together the key.
	Type, Name string
	// Version is the content hash, the only version that clients see: stable
	// over restarts and the same for every upstream (protocol.md 7.5).
	Version string
	// UpstreamVersion is what the upstream called this content. It goes back
	// to that upstream only, in initial_resource_versions (design.md I2).
	UpstreamVersion string
	// Body is the resource as the upstream sent it. nil says that the upstream
	// resolved an alias to nothing (protocol.md 3.15).
	Body *anypb.Any
	// EDSName is, for a cluster of type EDS, the name of its endpoints; "" for
	// every other resource.
	EDSName string
	// Extra is what few resources have, nil for nothing of it. It is immutable, too;
	// the methods of its fields' names read it.
	Extra *Extra
	// Wrapped says that Name is not what the body says, so that only a wrapper
	// can carry it in SotW.
	Wrapped bool
}

// Extra is what few resources have.
type Extra struct {
	// Aliases are further names that a subscription may use for this resource.
	Aliases []string
	// TTL is the lifetime that the upstream gave, 0 for none. Deadline is the
	// time it ends, fixed when the upstream last sent or refreshed it
	// (design.md I8); the zero time for none.
	TTL      time.Duration
	Deadline time.Time
	// CacheControl and Metadata are passed on as they came; nil for none.
	CacheControl *discoveryv3.Resource_CacheControl
	Metadata     *corev3.Metadata
}

// extra returns what there is of it, which may be nothing.
func (r *Resource) extra() *Extra {
	if r.Extra == nil {
		return &noExtra
	}
	return r.Extra
}

var noExtra Extra

// Aliases are further names that a subscription may use for this resource.
func (r *Resource) Aliases() []string { return r.extra().Aliases }

// TTL is the lifetime that the upstream gave, 0 for none.
func (r *Resource) TTL() time.Duration { return r.extra().TTL }

// Deadline is the time at which the TTL ends; the zero time for none.
func (r *Resource) Deadline() time.Time { return r.extra().Deadline }

// CacheControl is passed on as it came; nil for none.
func (r *Resource) CacheControl() *discoveryv3.Resource_CacheControl { return r.extra().CacheControl }

// Metadata is passed on as it came; nil for none.
func (r *Resource) Metadata() *corev3.Metadata { return r.extra().Metadata }

// WithLifetime returns the resource with another TTL, and when that ends.
func (r *Resource) WithLifetime(ttl time.Duration, deadline time.Time) *Resource {
	same, extra := *r, *r.extra()
	extra.TTL, extra.Deadline = ttl, deadline
	same.setExtra(extra)
	return &same
}

// setExtra sets what a resource has, which may be nothing.
func (r *Resource) setExtra(e Extra) {
	if r.Extra = nil; len(e.Aliases) > 0 || e.TTL != 0 || !e.Deadline.IsZero() || e.CacheControl != nil || e.Metadata != nil {
		kept := e // on the heap only here
		r.Extra = &kept
	}
}

// OfResponse is the UpstreamVersion of what a SotW response held bare. It has none of its
// own: that of the response changes with whatever else is in it.
const OfResponse = "holdfast:of-the-response"

// ErrHeartbeat says that a wrapper carries no body: it refreshes the TTL of the
// version that it names (xDS specification, "TTL"; protocol.md 6.1).
var ErrHeartbeat = errors.New("resource has no body")

// FromAny makes a resource of an entry of a SotW response: either the bare
// resource, whose name is in its body, or a wrapper (protocol.md 1.14). typeURL
// is the type of the response, which the entry must have; version is the
// response's. now fixes the TTL's deadline.
//
// The error names the resource where its name could be read. A wrapper without
// a body gives the resource's name and version, and ErrHeartbeat.
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

// FromWrapper makes a resource of an entry of a Delta response, or of a SotW
// wrapper. The name is the wrapper's or, where that is empty, the body's. See
// FromAny for the arguments and errors.
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
			name, err := nameIn(typeURL, r.Body)
			if err != nil {
				return nil, fmt.Errorf("%s resource: %w", Short(typeURL), err)
			}
			r.Name = name
		} else {
			inBody, err := scanName(r.Body.GetValue())
			if errors.Is(err, ErrMalformed) {
				return r, fmt.Errorf("%s %q: %w", Short(typeURL), r.Name, err)
			}
			r.Wrapped = err != nil || string(inBody) != r.Name
		}
	}
	if _, err := CheckName(r.Name); err != nil && (r.Name != "" || !Nameless(typeURL)) {
		return nil, fmt.Errorf("%s resource: %w", Short(typeURL), err)
	}
	r.Name = CanonicalName(r.Name) // a heartbeat's too: finish does not see it
	extra := Extra{Aliases: CanonicalNames(w.GetAliases()), CacheControl: w.GetCacheControl(), Metadata: w.GetMetadata()}
	if ttl := w.GetTtl(); ttl != nil {
		if err := ttl.CheckValid(); err != nil || ttl.AsDuration() <= 0 {
			return r, fmt.Errorf("%s %q: ttl of %d.%09d s: want a positive duration", Short(typeURL), r.Name, ttl.GetSeconds(), ttl.GetNanos())
		}
		extra.TTL = ttl.AsDuration()
		extra.Deadline = now.Add(extra.TTL)
	}
	r.setExtra(extra)
	// A body-less VirtualHost resolves an alias to nothing, in every other type
	// it is a heartbeat unless it lists aliases (protocol.md 3.15, 6.7).
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

// finish derives what the rest of holdfast asks of a resource.
func finish(r *Resource) (*Resource, error) {
	r.Name = CanonicalName(r.Name)
	if r.Type == ClusterType && r.Body != nil {
		eds, err := EDSName(r.Name, r.Body.GetValue())
		if err != nil {
			return r, err
		}
		r.EDSName = eds
	}
	r.Version = contentHash(r)
	return r, nil
}

// contentHash is the version of a resource: 64 bits of xxHash over everything a
// client can see of it, in hexadecimal. The TTL is not content: refreshing it
// changes nothing.
func contentHash(r *Resource) string {
	var h xxhash.Digest
	h.Reset()
	// Each part carries its kind and its size, so that no two resources run
	// together to the same bytes.
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
	// A message that was just unmarshalled marshals.
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

// Wrap makes w the resource as an entry of a Delta response. ttl is what remains of its
// lifetime, 0 to send none. The body is shared, not copied.
func (r *Resource) Wrap(w *discoveryv3.Resource, ttl time.Duration) {
	w.Name, w.Version = r.Name, r.Version
	w.Resource = r.Body
	w.Aliases, w.CacheControl, w.Metadata = r.Aliases(), r.CacheControl(), r.Metadata()
	w.Ttl = nil
	if ttl > 0 {
		w.Ttl = durationpb.New(ttl)
	}
}

// Wrapper is Wrap in a message of its own.
func (r *Resource) Wrapper(ttl time.Duration) *discoveryv3.Resource {
	w := &discoveryv3.Resource{}
	r.Wrap(w, ttl)
	return w
}

// Any returns the resource as an entry of a SotW response: the bare body, or a
// wrapper where the body alone would lose the name. A TTL is never passed on in
// SotW (protocol.md 6.4).
func (r *Resource) Any() (*anypb.Any, error) {
	if !r.Wrapped && len(r.Aliases()) == 0 && r.Body != nil {
		return r.Body, nil
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.Wrapper(0))
	if err != nil {
		return nil, fmt.Errorf("%s %q: wrapping for SotW: %w", Short(r.Type), r.Name, err)
	}
	return &anypb.Any{TypeUrl: WrapperType, Value: value}, nil
}

// Answers reports whether the resource is known by the name of a subscription:
// its own, or one of its aliases (protocol.md 3.15).
func (r *Resource) Answers(name string) bool {
	if r.Name == name {
		return true
	}
	for _, a := range r.Aliases() {
		if a == name {
			return true
		}
	}
	return false
}

// Unresolved returns what stands for a name of which a client is told that nothing is known by
// it: a resource without a body whose alias it is (protocol.md 3.15).
func Unresolved(typeURL, name string) *Resource {
	r := &Resource{Type: typeURL, Name: name, Extra: &Extra{Aliases: []string{name}}}
	r.Version = contentHash(r)
	return r
}

// EmptyRuntime returns a runtime layer without values: what a client that cannot
// be told of a removal gets instead (protocol.md 6.3).
func EmptyRuntime(name string) *Resource {
	body := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	body = protowire.AppendBytes(protowire.AppendTag(body, 2, protowire.BytesType), nil) // the layer
	r := &Resource{Type: RuntimeType, Name: name, Body: &anypb.Any{TypeUrl: RuntimeType, Value: body}}
	r.Version = contentHash(r)
	return r
}

// SetVersion is the version of a set of resources: a hash over the (name,
// version) pairs that does not depend on their order, kept up to date by adding
// and removing (protocol.md 7.6). The zero value is the empty set.
type SetVersion struct {
	sum uint64
}

// Add puts a resource into the set.
func (v *SetVersion) Add(r *Resource) { v.sum += pairHash(r) }

// Remove takes out a resource that was added.
func (v *SetVersion) Remove(r *Resource) { v.sum -= pairHash(r) }

// String returns the version; it is never empty, also of the empty set
// (protocol.md 1.11).
func (v *SetVersion) String() string { return hexSum(v.sum) }

func pairHash(r *Resource) uint64 {
	var h xxhash.Digest
	h.Reset()
	_, _ = h.WriteString(r.Name)
	_, _ = h.Write([]byte{0})
	_, _ = h.WriteString(r.Version)
	return h.Sum64()
}

func hexSum(sum uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], sum)
	return hex.EncodeToString(b[:])
}
