package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxAliases bounds the aliases of a resource.
const maxAliases = 1 << 16

// Flags of the content of a Put.
const (
	putAccepted = 1 << iota
	putWrapped
	putBody
	putCacheControl
	putMetadata
)

// Why a record is not used. They are keys of Status.Skipped and Loaded.Skipped.
const (
	whyKind      = "a record of a kind that this version does not know"
	whyMalformed = "a record whose content cannot be decoded"
	whyHash      = "a resource whose content does not have the hash that was stored with it"
	whyTooLarge  = "a resource of more than 64 MiB"
	whyCache     = "a resource that must not be cached (do_not_cache)"
	whySecret    = "a Secret, and no key to encrypt it with"
	whyType      = "a resource whose body is of another type"
	whyMessage   = "a resource whose metadata cannot be encoded"
)

// recordKey is the part of a record that is never encrypted: what it is about.
type recordKey struct {
	group, typ, name string
}

func (k recordKey) append(b []byte) []byte {
	for _, s := range [...]string{k.group, k.typ, k.name} {
		b = appendString(b, s)
	}
	return b
}

// rawKey is a recordKey in the buffer that it was read into.
type rawKey struct {
	group, typ, name []byte
}

func cutKey(b []byte) (k rawKey, rest []byte, ok bool) {
	for _, part := range [...]*[]byte{&k.group, &k.typ, &k.name} {
		if *part, b, ok = cutBytes(b); !ok {
			return k, nil, false
		}
	}
	return k, b, true
}

func appendString[S string | []byte](b []byte, s S) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func cutBytes(b []byte) (s, rest []byte, ok bool) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, false
	}
	b = b[n:]
	return b[:length], b[length:], true
}

// record appends a record. A resource that cannot be stored is stored as deleted,
// since nothing may pass for its content; why says so.
func (e *encoder) record(rec Record) (why string) {
	switch rec := rec.(type) {
	case Put:
		r := rec.Resource
		key := recordKey{rec.Group, r.Type, r.Name}
		content, why := appendPut(e.content[:0], rec)
		e.content = content
		if why == "" && e.form.aead == nil && r.Type == xds.SecretType {
			why = whySecret // the caller asks Storable; no mistake of its writes a Secret
		}
		if why == "" && !e.frame(kindPut, key, content) {
			why = whyTooLarge
		}
		if why != "" {
			e.frame(kindDelete, key, nil)
		}
		return why
	case Accept:
		e.plain(kindAccept, rec.Key, nil)
	case Prove:
		e.plain(kindProve, rec.Key, nil)
	case Delete:
		e.plain(kindDelete, rec.Key, nil)
	case Touch:
		b := appendString(e.content[:0], rec.Source)
		b = appendString(b, rec.UpstreamVersion)
		e.content = appendTTL(b, rec.TTL, rec.Deadline)
		e.plain(kindTouch, rec.Key, e.content)
	case Note:
		e.content = append(e.content[:0], rec.Value...)
		e.plain(kindNote, Key{Group: rec.Key.Group, Name: rec.Key.Name}, e.content)
	}
	return ""
}

func (e *encoder) plain(k kind, key Key, content []byte) {
	e.frame(k, recordKey{group: key.Group, typ: key.Type, name: key.Name}, content)
}

// appendPut encodes the content of a Put, or says why it cannot be stored.
func appendPut(b []byte, rec Put) (_ []byte, why string) {
	r := rec.Resource
	switch {
	case r.CacheControl().GetDoNotCache():
		return b, whyCache
	case r.Body != nil && r.Body.TypeUrl != r.Type:
		return b, whyType
	case len(r.Body.GetValue()) > maxPayload || len(r.Aliases()) > maxAliases:
		return b, whyTooLarge
	}
	var flags byte
	set := func(flag byte, on bool) {
		if on {
			flags |= flag
		}
	}
	set(putAccepted, rec.Accepted)
	set(putWrapped, r.Wrapped)
	set(putBody, r.Body != nil)
	set(putCacheControl, r.CacheControl() != nil)
	set(putMetadata, r.Metadata() != nil)
	b = append(b, flags)
	b = appendString(b, r.Version)
	b = appendString(b, rec.Source)
	b = appendString(b, r.UpstreamVersion)
	b = appendTTL(b, r.TTL(), r.Deadline())
	b = binary.AppendUvarint(b, uint64(len(r.Aliases())))
	for _, alias := range r.Aliases() {
		b = appendString(b, alias)
	}
	deterministic := proto.MarshalOptions{Deterministic: true}
	for _, m := range []proto.Message{r.CacheControl(), r.Metadata()} {
		if !m.ProtoReflect().IsValid() {
			continue
		}
		encoded, err := deterministic.Marshal(m)
		if err != nil {
			return b, whyMessage
		}
		b = appendString(b, encoded)
	}
	return append(b, r.Body.GetValue()...), ""
}

// appendTTL encodes a lifetime and when it ends, 0 for never. A time beyond what
// 64 bits of nanoseconds hold, the year 2262, becomes that.
func appendTTL(b []byte, ttl time.Duration, deadline time.Time) []byte {
	var at int64
	if !deadline.IsZero() {
		at = deadline.UnixNano()
		if deadline.After(time.Unix(0, math.MaxInt64)) {
			at = math.MaxInt64
		}
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(ttl))
	return binary.LittleEndian.AppendUint64(b, uint64(at))
}

func cutTTL(b []byte) (ttl time.Duration, deadline time.Time, rest []byte, ok bool) {
	if len(b) < 16 {
		return 0, time.Time{}, nil, false
	}
	ttl = time.Duration(binary.LittleEndian.Uint64(b))
	if at := int64(binary.LittleEndian.Uint64(b[8:])); at != 0 {
		deadline = time.Unix(0, at)
	}
	return ttl, deadline, b[16:], true
}

// unusable says that a record is intact and yet of no use; it is a why.
type unusable string

func (u unusable) Error() string { return string(u) }

// interned keeps one copy of each string that comes again and again.
type interned map[string]string

// maxInterned bounds the strings that are looked for again. Types, groups and
// sources are few; upstream versions may be as many as resources.
const maxInterned = 4096

func (in interned) get(b []byte) string {
	if s, ok := in[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(in) < maxInterned {
		in[s] = s
	}
	return s
}

// decode makes a Record of what was read, which it does not keep. Its error is an
// unusable; for a Put it also returns the Delete that stands for it.
func decode(raw rawRecord, in interned) (Record, error) {
	key := Key{Group: in.get(raw.key.group), Type: in.get(raw.key.typ), Name: string(raw.key.name)}
	switch raw.kind {
	case kindPut:
		put, err := decodePut(raw, key, in)
		if err != nil {
			return Delete{key}, err
		}
		return put, nil
	case kindAccept:
		return Accept{key}, nil
	case kindProve:
		return Prove{key}, nil
	case kindDelete:
		return Delete{key}, nil
	case kindTouch:
		source, b, ok1 := cutBytes(raw.content)
		upstream, b, ok2 := cutBytes(b)
		ttl, deadline, _, ok3 := cutTTL(b)
		if !ok1 || !ok2 || !ok3 {
			return nil, unusable(whyMalformed)
		}
		return Touch{Key: key, Source: in.get(source), UpstreamVersion: in.get(upstream), TTL: ttl, Deadline: deadline}, nil
	case kindNote:
		return Note{Key: NoteKey{key.Group, key.Name}, Value: string(raw.content)}, nil
	default:
		return nil, unusable(whyKind)
	}
}

// decodePut makes a resource as it was made when it came from its upstream, and
// compares the hashes of the contents.
func decodePut(raw rawRecord, key Key, in interned) (Put, error) {
	malformed := unusable(whyMalformed)
	if len(raw.content) == 0 {
		return Put{}, malformed
	}
	flags := raw.content[0]
	version, b, ok0 := cutBytes(raw.content[1:])
	source, b, ok1 := cutBytes(b)
	upstream, b, ok2 := cutBytes(b)
	ttl, deadline, b, ok3 := cutTTL(b)
	aliases, b, ok4 := cutAliases(b)
	if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 {
		return Put{}, malformed
	}
	w := &discoveryv3.Resource{Name: key.Name, Version: in.get(upstream), Aliases: aliases}
	var err error
	if flags&putCacheControl != 0 {
		w.CacheControl = &discoveryv3.Resource_CacheControl{}
		b, err = cutMessage(b, w.CacheControl)
	}
	if flags&putMetadata != 0 && err == nil {
		w.Metadata = &corev3.Metadata{}
		b, err = cutMessage(b, w.Metadata)
	}
	if err != nil || (flags&putBody == 0 && len(b) > 0) {
		return Put{}, malformed
	}
	if flags&putBody != 0 {
		w.Resource = &anypb.Any{TypeUrl: key.Type, Value: bytes.Clone(b)}
	}
	r, err := xds.FromWrapper(key.Type, w, time.Time{})
	switch {
	case err != nil:
		return Put{}, malformed
	case r.CacheControl().GetDoNotCache():
		return Put{}, unusable(whyCache)
	case r.Version != string(version) || r.Name != key.Name:
		return Put{}, unusable(whyHash)
	}
	if ttl != 0 || !deadline.IsZero() {
		r = r.WithLifetime(ttl, deadline)
	}
	r.Wrapped = flags&putWrapped != 0
	return Put{Group: key.Group, Resource: r, Source: in.get(source), Accepted: flags&putAccepted != 0}, nil
}

func cutAliases(b []byte) (aliases []string, rest []byte, ok bool) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count > maxAliases || count > uint64(len(b)-n) {
		return nil, nil, false
	}
	b = b[n:]
	for range count {
		var alias []byte
		if alias, b, ok = cutBytes(b); !ok {
			return nil, nil, false
		}
		aliases = append(aliases, string(alias))
	}
	return aliases, b, true
}

var errCut = errors.New("cut short")

func cutMessage(b []byte, m proto.Message) (rest []byte, err error) {
	encoded, rest, ok := cutBytes(b)
	if !ok {
		return nil, errCut
	}
	if err := proto.Unmarshal(encoded, m); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	return rest, nil
}

// mark is what a commit mark says.
type mark struct {
	flags byte
	count uint32
	at    time.Time
}

func decodeMark(content []byte) (mark, bool) {
	if len(content) != commitContent {
		return mark{}, false
	}
	return mark{
		flags: content[0],
		count: binary.LittleEndian.Uint32(content[1:]),
		at:    time.Unix(0, int64(binary.LittleEndian.Uint64(content[5:]))),
	}, true
}
