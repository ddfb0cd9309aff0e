// Package export converts the last known good state to files that Envoy reads with
// path_config_source, so that Envoy can start without an agent.
//
// It promises that the files give Envoy the same configuration as the agent and Envoy's own bootstrap
// would, or Result.Missing says what is not in them. Resources that Envoy requests by name (endpoints,
// routes, scopes, virtual hosts, filter configurations) are inlined into the cluster or listener that
// refers to them, because a missing file is fatal to Envoy and a listener without its routes is useless.
// A reference that cannot be replaced stays unchanged.
//
// It decodes the resources, but only knows the types of internal/envoytypes: a message of
// another type is copied unchanged, together with its references. It reads no disk and has no
// state; Build may be called concurrently.
package export

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// File is one file of an export.
type File struct {
	// Name is relative to the directory.
	Name string
	Data []byte
	// Secret is set if the file contains a key or a credential, and only its owner may read it.
	Secret bool
}

// Config configures Build.
type Config struct {
	// Bootstrap is the bootstrap with which Envoy gets its resources from the agent; it is not modified. All in it that needs
	// no agent is in the result: static resources, extensions, tracing, stats, limits.
	Bootstrap *bootstrapv3.Bootstrap
	// Own is set if Bootstrap is that of the Envoy, and not made from its node alone. Then whatever the resources refer to and
	// is in neither was not there when Envoy accepted them, and is not missing.
	Own bool
	// Dir is the absolute path of the directory in which Envoy will find the files.
	Dir string
	// Secrets writes certificates with their private keys to files, unencrypted.
	Secrets bool
}

// Result is an export.
type Result struct {
	// Files are in the order in which they must be written: a file follows the files that it
	// refers to.
	Files []File
	// Clusters and Listeners are the names of the files with these resources.
	Clusters, Listeners string
	// Counts is the number of exported resources by type.
	Counts map[string]int
	// Bootstrap is the one to start Envoy with. Secret is set if only its owner may read it.
	Bootstrap *bootstrapv3.Bootstrap
	Secret    bool
	// Missing describes, in sorted order, what the files refer to but do not contain: Envoy would not start, or would serve less
	// than it did. Notes are other things that differ, or may.
	Missing, Notes []string

	clusters, listeners []*anypb.Any
}

// Build builds the files from the accepted resources of one group.
func Build(resources []*xds.Resource, cfg Config) (*Result, error) {
	w := &writer{
		cfg: cfg, stored: make(map[string]map[string]*xds.Resource),
		missing: make(map[string]struct{}), notes: make(map[string]struct{}), secrets: make(map[string]struct{}),
		result: &Result{Counts: make(map[string]int), Bootstrap: proto.CloneOf(cfg.Bootstrap)},
	}
	for _, r := range resources {
		if r.Body == nil {
			continue
		}
		if w.stored[r.Type] == nil {
			w.stored[r.Type] = make(map[string]*xds.Resource)
		}
		w.stored[r.Type][r.Name] = r
	}
	res, err := w.result, error(nil)
	if res.clusters, err = w.buildAll(xds.ClusterType); err != nil {
		return nil, err
	}
	if res.listeners, err = w.buildAll(xds.ListenerType); err != nil {
		return nil, err
	}
	if err := w.ownResources(); err != nil {
		return nil, err
	}
	if err := w.writeSecrets(); err != nil {
		return nil, err
	}
	if res.Clusters, err = w.addFile("clusters", xds.ClusterType, res.clusters, false); err != nil {
		return nil, err
	}
	if res.Listeners, err = w.addFile("listeners", xds.ListenerType, res.listeners, false); err != nil {
		return nil, err
	}
	w.finish()
	res.Missing, res.Notes = slices.Sorted(maps.Keys(w.missing)), slices.Sorted(maps.Keys(w.notes))
	return res, nil
}

// writer builds one export.
type writer struct {
	cfg     Config
	stored  map[string]map[string]*xds.Resource // by type and name; each has a body
	missing map[string]struct{}
	notes   map[string]struct{}
	// secrets are the names of the secrets that something refers to.
	secrets map[string]struct{}
	result  *Result
	finder  redact.Finder
	// current is the resource that is being written, for messages.
	current string
}

// lookup returns the stored resource of a name. If there is none, it returns nil and adds the
// resource to the missing ones.
func (w *writer) lookup(typeURL, name string) *xds.Resource {
	r := w.take(typeURL, name)
	if r == nil {
		w.addMissing("%s %q is not stored", xds.Short(typeURL), name)
	}
	return r
}

// take returns the stored resource of a name, nil if there is none.
func (w *writer) take(typeURL, name string) *xds.Resource {
	r := w.stored[typeURL][name]
	if r != nil {
		w.result.Counts[typeURL]++
	}
	return r
}

func (w *writer) addMissing(format string, args ...any) {
	w.missing[w.current+": "+fmt.Sprintf(format, args...)] = struct{}{}
}

func (w *writer) addNote(format string, args ...any) {
	w.notes[w.current+": "+fmt.Sprintf(format, args...)] = struct{}{}
}

// buildAll returns all resources of a type, with their references inlined.
func (w *writer) buildAll(typeURL string) ([]*anypb.Any, error) {
	var out []*anypb.Any
	for _, name := range slices.Sorted(maps.Keys(w.stored[typeURL])) {
		w.current = fmt.Sprintf("%s %q", xds.Short(typeURL), name)
		body := proto.CloneOf(w.stored[typeURL][name].Body)
		if err := w.inlineAny(body, 0); err != nil {
			return nil, fmt.Errorf("export: %s: %w", w.current, err)
		}
		w.result.Counts[typeURL]++
		out = append(out, body)
	}
	return out, nil
}

// addFile adds a file with the resources of one type, and returns its name.
func (w *writer) addFile(name, typeURL string, resources []*anypb.Any, secret bool) (string, error) {
	data, extension, err := encode(typeURL, resources)
	if err != nil {
		return "", fmt.Errorf("export: %s: %w", name, err)
	}
	name += extension
	for _, r := range resources {
		secret = secret || w.finder.Sensitive(r) != "" // only Envoy needs it
	}
	w.result.Files = append(w.result.Files, File{Name: name, Data: data, Secret: secret})
	return name, nil
}

// encode returns a response with the resources, and the extension of its file: JSON, or the binary
// form if JSON cannot represent a type.
func encode(typeURL string, resources []*anypb.Any) (data []byte, extension string, err error) {
	resp := &discoveryv3.DiscoveryResponse{VersionInfo: "last-known-good", TypeUrl: typeURL, Resources: resources}
	data, err = protojson.MarshalOptions{Multiline: true, UseProtoNames: true, Resolver: envoytypes.Resolver}.Marshal(resp)
	if err == nil {
		return data, ".json", nil
	}
	data, err = proto.MarshalOptions{Deterministic: true}.Marshal(resp)
	return data, ".pb", err
}

// secretFile returns the file of a secret. A secret that is not exported has a predictable name, so
// that the user can provide the file.
func (w *writer) secretFile(name string) string {
	extension := ".json"
	if r := w.stored[xds.SecretType][name]; r != nil && (w.cfg.Secrets || redact.Public(r.Body)) {
		_, extension, _ = encode(xds.SecretType, []*anypb.Any{r.Body}) // addFile returns the error
	}
	return "secrets/" + escape(name) + extension
}

// escape returns a file name for any text: special characters are written as %XX.
func escape(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
		if plain || c == '.' && b.Len() > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func (w *writer) writeSecrets() error {
	for _, name := range slices.Sorted(maps.Keys(w.secrets)) {
		file := w.cfg.Dir + "/" + w.secretFile(name)
		w.current = fmt.Sprintf("SDS %q", name)
		r := w.stored[xds.SecretType][name]
		switch {
		case r == nil:
			w.addMissing("it is not stored: write it to %s", file)
		case !w.cfg.Secrets && !redact.Public(r.Body):
			w.addMissing("its private key is not exported without --with-secrets: write it to %s", file)
		default:
			w.result.Counts[xds.SecretType]++
			if _, err := w.addFile("secrets/"+escape(name), xds.SecretType, []*anypb.Any{r.Body}, true); err != nil {
				return err
			}
		}
	}
	return nil
}
