// Package export converts the last known good state to files that Envoy reads with
// path_config_source, so that Envoy can start without an agent.
//
// It promises that the files give Envoy the same configuration as the agent would. Resources
// that Envoy requests by name (endpoints, routes, scopes, virtual hosts, filter configurations)
// are inlined into the cluster or listener that refers to them, because a missing file is fatal
// to Envoy and a listener without its routes is useless. Result.Missing lists what cannot be
// inlined; such references stay unchanged.
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

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

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
	// Runtime are the stored runtime layers by name, for the bootstrap.
	Runtime map[string]*structpb.Struct
	// Missing describes, in sorted order, what the files refer to but do not contain.
	Missing []string
}

// Build builds the files from the accepted resources of one group.
func Build(resources []*xds.Resource, cfg Config) (*Result, error) {
	w := &writer{
		cfg: cfg, stored: make(map[string]map[string]*xds.Resource),
		missing: make(map[string]struct{}), secrets: make(map[string]struct{}),
		result: &Result{Counts: make(map[string]int), Runtime: make(map[string]*structpb.Struct)},
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
	clusters, err := w.buildAll(xds.ClusterType)
	if err != nil {
		return nil, err
	}
	listeners, err := w.buildAll(xds.ListenerType)
	if err != nil {
		return nil, err
	}
	if err := w.writeSecrets(); err != nil {
		return nil, err
	}
	res := w.result
	if res.Clusters, err = w.addFile("clusters", xds.ClusterType, clusters, false); err != nil {
		return nil, err
	}
	if res.Listeners, err = w.addFile("listeners", xds.ListenerType, listeners, false); err != nil {
		return nil, err
	}
	for name, r := range w.stored[xds.RuntimeType] {
		var layer runtimev3.Runtime
		if err := r.Body.UnmarshalTo(&layer); err != nil {
			return nil, fmt.Errorf("RTDS %q: %w", name, err)
		}
		res.Runtime[name] = layer.GetLayer()
	}
	res.Missing = slices.Sorted(maps.Keys(w.missing))
	return res, nil
}

// writer builds one export.
type writer struct {
	cfg     Config
	stored  map[string]map[string]*xds.Resource // by type and name; each has a body
	missing map[string]struct{}
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
	if r := w.stored[typeURL][name]; r != nil {
		w.result.Counts[typeURL]++
		return r
	}
	w.addMissing("%s %q is not stored", xds.Short(typeURL), name)
	return nil
}

func (w *writer) addMissing(format string, args ...any) {
	w.missing[w.current+": "+fmt.Sprintf(format, args...)] = struct{}{}
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
	if r := w.stored[xds.SecretType][name]; w.cfg.Secrets && r != nil {
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
		case !w.cfg.Secrets:
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
