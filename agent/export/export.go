// Package export writes the last known good as files that an Envoy reads with
// path_config_source, so that it can be started with no agent at all.
//
// It promises that Envoy gets from the files what it would get from the agent:
// what is fetched by name (endpoints, routes, scopes, virtual hosts, filter
// configurations) is put into the cluster or listener that refers to it, since a
// file that is missing is fatal to Envoy and a listener without its routes is of no
// use. What cannot be had that way is told in Result.Missing, and left as it is.
//
// It decodes everything, and so knows only the types that internal/envoytypes does;
// what it does not know it passes on byte for byte, with whatever that
// refers to. It reads no disk and keeps no state.
package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

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
	// Secret says that it holds a key or a credential, and is for its owner only.
	Secret bool
}

// Config configures Write.
type Config struct {
	// Dir is where Envoy will find the files: an absolute path.
	Dir string
	// Secrets puts certificates with their private keys into files, in the clear.
	Secrets bool
}

// Result is an export.
type Result struct {
	// Files is in the order in which they are to be written: what refers to another
	// comes after it.
	Files []File
	// Clusters and Listeners are the names of those files.
	Clusters, Listeners string
	// Counts says how many resources of each type went in.
	Counts map[string]int
	// Runtime are the stored layers by name, for the bootstrap.
	Runtime map[string]*xds.Resource
	// Missing says, in order, what the files refer to and do not have.
	Missing []string
}

// Build makes the files of what is held of one group: the accepted contents.
func Build(held []*xds.Resource, cfg Config) (*Result, error) {
	w := &writer{
		cfg: cfg, held: make(map[string]map[string]*xds.Resource),
		missing: make(map[string]struct{}), secrets: make(map[string]struct{}),
		result: &Result{Counts: make(map[string]int), Runtime: make(map[string]*xds.Resource)},
	}
	for _, r := range held {
		if w.held[r.Type] == nil {
			w.held[r.Type] = make(map[string]*xds.Resource)
		}
		w.held[r.Type][r.Name] = r
	}
	clusters, err := w.all(xds.ClusterType)
	if err != nil {
		return nil, err
	}
	listeners, err := w.all(xds.ListenerType)
	if err != nil {
		return nil, err
	}
	if err := w.writeSecrets(); err != nil {
		return nil, err
	}
	res := w.result
	if res.Clusters, err = w.file("clusters", xds.ClusterType, clusters, false); err != nil {
		return nil, err
	}
	if res.Listeners, err = w.file("listeners", xds.ListenerType, listeners, false); err != nil {
		return nil, err
	}
	maps.Copy(res.Runtime, w.held[xds.RuntimeType])
	res.Missing = slices.Sorted(maps.Keys(w.missing))
	return res, nil
}

// writer makes one export.
type writer struct {
	cfg     Config
	held    map[string]map[string]*xds.Resource // by type and name
	missing map[string]struct{}
	// secrets are the names that something refers to.
	secrets map[string]struct{}
	result  *Result
	finder  redact.Finder
	// within says what is being written, for messages.
	within string
}

// lookup returns what is held under a name, nil for nothing, which is noted.
func (w *writer) lookup(typeURL, name string) *xds.Resource {
	if r := w.held[typeURL][name]; r != nil && r.Body != nil {
		w.result.Counts[typeURL]++
		return r
	}
	w.lacks("%s %q is not stored", xds.Short(typeURL), name)
	return nil
}

func (w *writer) lacks(format string, args ...any) {
	w.missing[w.within+": "+fmt.Sprintf(format, args...)] = struct{}{}
}

// all returns everything of a type, with what it refers to put in.
func (w *writer) all(typeURL string) ([]*anypb.Any, error) {
	var out []*anypb.Any
	for _, name := range slices.Sorted(maps.Keys(w.held[typeURL])) {
		r := w.held[typeURL][name]
		if r.Body == nil {
			continue
		}
		w.within = fmt.Sprintf("%s %q", xds.Short(typeURL), name)
		body := proto.CloneOf(r.Body)
		if err := w.inAny(body, 0); err != nil {
			return nil, fmt.Errorf("export: %s: %w", w.within, err)
		}
		w.result.Counts[typeURL]++
		out = append(out, body)
	}
	return out, nil
}

// file adds a file with the resources of one type: JSON, or, where a type cannot be
// written so, binary.
func (w *writer) file(name, typeURL string, resources []*anypb.Any, secret bool) (string, error) {
	resp := &discoveryv3.DiscoveryResponse{VersionInfo: "last-known-good", TypeUrl: typeURL, Resources: resources}
	data, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true, Resolver: envoytypes.Resolver}.Marshal(resp)
	name += ".json"
	if err != nil {
		name = strings.TrimSuffix(name, ".json") + ".pb"
		if data, err = (proto.MarshalOptions{Deterministic: true}).Marshal(resp); err != nil {
			return "", fmt.Errorf("export: %s: %w", name, err)
		}
	}
	for _, r := range resources {
		secret = secret || w.finder.Sensitive(r) != "" // Envoy needs it, and nobody else
	}
	w.result.Files = append(w.result.Files, File{Name: name, Data: data, Secret: secret})
	return name, nil
}

// secretFile is the file of a secret; its name is told by nothing else, so that it
// can be put there by hand.
func (w *writer) secretFile(name string) string {
	return "secrets/" + escaped(name) + ".json"
}

// escaped makes a file name of any text: what is not plain is written as %XX.
func escaped(name string) string {
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
		w.within = fmt.Sprintf("SDS %q", name)
		r := w.held[xds.SecretType][name]
		switch {
		case r == nil || r.Body == nil:
			w.lacks("it is not stored: write it to %s", file)
		case !w.cfg.Secrets:
			w.lacks("its private key is not exported without --with-secrets: write it to %s", file)
		default:
			w.result.Counts[xds.SecretType]++
			if _, err := w.file("secrets/"+escaped(name), xds.SecretType, []*anypb.Any{r.Body}, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// scopes returns every scope that is held, in order.
func (w *writer) scopes() []*xds.Resource {
	out := slices.Collect(maps.Values(w.held[xds.ScopedRouteType]))
	slices.SortFunc(out, func(a, b *xds.Resource) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
