// Package seed writes and reads seeds: the last known good of one agent as a file, for agents of the same role
// that have nothing stored while no control plane answers (envoy#21644).
//
// It promises that a seed contains no secret, and that Decode accepts a file as a whole or not at all: one that was
// cut, damaged or changed, or whose signature is not good, yields an error and no resource. The signature is checked
// before anything is decompressed or parsed.
//
// A seed is two lines and a gzip stream. The first line is "holdfast seed 1", the second one "unsigned" or "ed25519
// KEY SIGNATURE": the fingerprint of the public key, and the signature of the first line and the stream. The stream
// has a line of JSON (see header) and then each resource as an envoy.service.discovery.v3.Resource after its length
// as a varint, in push order of the types and then by name. The TTL of a resource counts from the time of the seed.
//
// All functions may be called concurrently.
package seed

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Limits of a seed, in bytes.
const (
	// MaxSize is that of a file.
	MaxSize = 64 << 20
	// maxContent is that of what is compressed in it, maxResource that of one resource, and maxHeader that of
	// the line of JSON.
	maxContent  = 1 << 30
	maxResource = 64 << 20
	maxHeader   = 1 << 20
)

const (
	magic    = "holdfast seed 1\n"
	unsigned = "unsigned"
	ed       = "ed25519"
)

// Seed is the last known good of the Envoys of one role.
type Seed struct {
	// Role names the Envoys that have the same configuration.
	Role string
	// At is when the control plane was last connected.
	At time.Time
	// Types are the type URLs of which all resources were known.
	Types []string
	// Resources were accepted by an Envoy. None is a secret or contains one.
	Resources []*xds.Resource
	// LeftOut counts, by reason, the accepted resources that are not in the seed.
	LeftOut map[string]int
	// SignedBy is the fingerprint of the key with which it was signed; "" for none. Encode does not read it.
	SignedBy string
}

// header is the line of JSON.
type header struct {
	Role      string         `json:"role"`
	At        time.Time      `json:"at"`
	Types     []string       `json:"types"`
	Resources int            `json:"resources"`
	LeftOut   map[string]int `json:"left_out,omitempty"`
}

var (
	deterministic = protodelim.MarshalOptions{MarshalOptions: proto.MarshalOptions{Deterministic: true}}
	bounded       = protodelim.UnmarshalOptions{MaxSize: maxResource}
)

// Encode returns the file of a seed, signed with key if that is not nil. The same seed always has the same bytes.
func Encode(s *Seed, key ed25519.PrivateKey) ([]byte, error) {
	var stream bytes.Buffer
	zip, err := gzip.NewWriterLevel(&stream, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	resources := slices.SortedFunc(slices.Values(s.Resources), func(a, b *xds.Resource) int {
		return cmp.Or(xds.CompareTypes(a.Type, b.Type), strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	h := header{Role: s.Role, At: s.At.UTC().Truncate(time.Second), Types: s.Types, Resources: len(resources), LeftOut: s.LeftOut}
	if err := json.NewEncoder(zip).Encode(h); err != nil {
		return nil, err
	}
	for _, r := range resources {
		var w discoveryv3.Resource
		ttl := time.Duration(0)
		if !r.Deadline().IsZero() {
			if ttl = r.Deadline().Sub(h.At); ttl <= 0 {
				return nil, fmt.Errorf("seed: the TTL of %s %q had ended", xds.Short(r.Type), r.Name)
			}
		}
		r.Wrap(&w, ttl)
		w.Version = "" // the content hash, which the reader makes itself
		if _, err := deterministic.MarshalTo(zip, &w); err != nil {
			return nil, fmt.Errorf("seed: %s %q: %w", xds.Short(r.Type), r.Name, err)
		}
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	size := len(magic) + stream.Len()
	if size > MaxSize {
		return nil, fmt.Errorf("seed: it has %d MiB, more than the limit of %d MiB", size>>20, MaxSize>>20)
	}
	line := unsigned
	if key != nil {
		signature := ed25519.Sign(key, slices.Concat([]byte(magic), stream.Bytes()))
		line = strings.Join([]string{ed, Fingerprint(key.Public().(ed25519.PublicKey)), base64.StdEncoding.EncodeToString(signature)}, " ")
	}
	return slices.Concat([]byte(magic), []byte(line+"\n"), stream.Bytes()), nil
}

// Trust says which seeds are accepted.
type Trust struct {
	// Keys are the keys of which one must have signed the seed. If there are none, no signature counts.
	Keys []ed25519.PublicKey
	// Unsigned accepts a seed without looking at its signature if there are no Keys.
	Unsigned bool
}

// check returns the fingerprint of the key that signed; "" if no signature was needed.
func (t Trust) check(line string, stream []byte) (by string, err error) {
	kind, rest, _ := strings.Cut(line, " ")
	key, text, _ := strings.Cut(rest, " ")
	switch {
	case kind != unsigned && kind != ed:
		return "", errors.New("it is damaged: its second line is no signature")
	case len(t.Keys) == 0 && t.Unsigned:
		return "", nil
	case len(t.Keys) == 0:
		return "", errors.New("only a local file that belongs to root, and that nobody else can write to, is accepted without a signature: name the keys to trust with --seed-trust")
	case kind == unsigned:
		return "", errors.New("it is not signed, and --seed-trust requires a signature: sign it with --seed-key")
	}
	signature, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", errors.New("it is damaged: its signature is no base64")
	}
	signed := slices.Concat([]byte(magic), stream)
	for _, k := range t.Keys {
		if ed25519.Verify(k, signed, signature) {
			return Fingerprint(k), nil
		}
	}
	for _, k := range t.Keys {
		if Fingerprint(k) == key {
			return "", fmt.Errorf("its signature is not good, although it names the key %s: it was changed or damaged", key)
		}
	}
	return "", fmt.Errorf("it is signed with a key that is not in --seed-trust: %s", shortened(key))
}

// shortened bounds a text that an error quotes.
func shortened(s string) string { return fmt.Sprintf("%.80q", s) }

// Decode reads a seed. Errors say what to do.
func Decode(data []byte, trust Trust) (*Seed, error) {
	line, stream, err := parts(data)
	if err != nil {
		return nil, err
	}
	by, err := trust.check(line, stream)
	if err != nil {
		return nil, err
	}
	s, err := decode(stream)
	if err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	s.SignedBy = by
	return s, nil
}

// parts returns the second line and the stream of a seed.
func parts(data []byte) (line string, stream []byte, err error) {
	rest, is := bytes.CutPrefix(data, []byte(magic))
	switch {
	case len(data) == 0:
		return "", nil, errors.New("it is empty: nothing was published yet")
	case !is && bytes.HasPrefix(data, []byte("holdfast seed ")):
		return "", nil, errors.New("it is of a later version of holdfast: use that version, or publish it again with this one")
	case !is:
		return "", nil, errors.New("it is no seed: `holdfast export --seed FILE` writes one")
	}
	second, stream, ok := bytes.Cut(rest, []byte("\n"))
	if !ok {
		return "", nil, errors.New("it is damaged: it ends in its second line")
	}
	return string(second), stream, nil
}

func decode(stream []byte) (*Seed, error) {
	zip, err := gzip.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, err
	}
	zip.Multistream(false)
	in := bufio.NewReaderSize(io.LimitReader(zip, maxContent), maxHeader)
	h, err := readHeader(in)
	if err != nil {
		return nil, err
	}
	s := &Seed{Role: h.Role, At: h.At, Types: h.Types, LeftOut: h.LeftOut}
	type key struct{ typeURL, name string }
	seen := make(map[key]bool)
	for {
		w := &discoveryv3.Resource{}
		err := bounded.UnmarshalFrom(in, w)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if w.GetResource() == nil {
			return nil, fmt.Errorf("resource %q has no content", w.GetName())
		}
		r, err := xds.FromWrapper(w.GetResource().GetTypeUrl(), w, h.At)
		if err != nil {
			return nil, err
		}
		k := key{r.Type, r.Name}
		if seen[k] {
			return nil, fmt.Errorf("%s %q is in it twice", xds.Short(r.Type), r.Name)
		}
		seen[k] = true
		s.Resources = append(s.Resources, r)
	}
	if _, err := io.Copy(io.Discard, zip); err != nil { // the checksum
		return nil, err
	}
	if len(s.Resources) != h.Resources {
		return nil, fmt.Errorf("it has %d resources, and says %d", len(s.Resources), h.Resources)
	}
	return s, nil
}

// readHeader reads the line of JSON.
func readHeader(in *bufio.Reader) (h header, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return h, fmt.Errorf("its header: %w", err)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("its header: %w", err)
	}
	if h.At.IsZero() {
		return h, errors.New("its header: the time is missing")
	}
	return h, nil
}

// Peek returns the role and the time that a file claims to have, without looking at its signature: to know whether
// it should be replaced.
func Peek(data []byte) (role string, at time.Time, err error) {
	_, stream, err := parts(data)
	if err != nil {
		return "", time.Time{}, err
	}
	zip, err := gzip.NewReader(bytes.NewReader(stream))
	if err != nil {
		return "", time.Time{}, err
	}
	h, err := readHeader(bufio.NewReaderSize(io.LimitReader(zip, maxHeader), maxHeader))
	return h.Role, h.At, err
}
