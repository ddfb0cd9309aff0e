package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A bom is a list of parts in the form of CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/).
type bom struct {
	Format       string         `json:"bomFormat"`
	Spec         string         `json:"specVersion"`
	Serial       string         `json:"serialNumber"`
	Version      int            `json:"version"`
	Metadata     bomMetadata    `json:"metadata"`
	Components   []component    `json:"components"`
	Dependencies []dependencies `json:"dependencies"`
}

type bomMetadata struct {
	Timestamp string    `json:"timestamp"`
	Tools     bomTools  `json:"tools"`
	Component component `json:"component"`
}

type bomTools struct {
	Components []component `json:"components"`
}

type component struct {
	Ref        string          `json:"bom-ref,omitempty"`
	Type       string          `json:"type"`
	Name       string          `json:"name"`
	Version    string          `json:"version"`
	Hashes     []hash          `json:"hashes,omitempty"`
	Licenses   []licenseChoice `json:"licenses,omitempty"`
	PURL       string          `json:"purl,omitempty"`
	Properties []property      `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type licenseChoice struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependencies struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// licensed is a list of one license by its SPDX identifier.
func licensed(id string) []licenseChoice {
	var l licenseChoice
	l.License.ID = id
	return []licenseChoice{l}
}

// sbomOf lists the parts of a program, as they stand in its own build information.
func sbomOf(p program, version string, at time.Time) (bom, error) {
	sum := sha256.Sum256(p.data)
	root := component{
		Type: "application", Name: p.command, Version: version, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}, Licenses: licensed(license),
		PURL:       golang(p.info.Main.Path, version) + "?goarch=" + p.platform.arch + "&goos=" + p.platform.os + "#cmd/" + p.command,
		Properties: []property{{"holdfast:go:version", p.info.GoVersion}},
	}
	for _, s := range p.info.Settings {
		root.Properties = append(root.Properties, property{"holdfast:go:build:" + s.Key, s.Value})
	}
	parts := []component{{
		Type: "library", Name: "std", Version: p.info.GoVersion, PURL: golang("std", strings.TrimPrefix(p.info.GoVersion, "go")), Licenses: licensed("BSD-3-Clause"),
	}}
	for _, dep := range p.info.Deps {
		c, err := moduleComponent(dep)
		if err != nil {
			return bom{}, fmt.Errorf("%s for %s: %w", p.command, p.platform, err)
		}
		parts = append(parts, c)
	}
	return newBOM(root, parts, version, at), nil
}

// moduleComponent is the module of a dependency. Its hash is that of go.sum: the SHA-256 of a list of the hashes of its files.
func moduleComponent(dep *debug.Module) (component, error) {
	m := module(dep)
	c := component{Type: "library", Name: m.Path, Version: m.Version, PURL: golang(m.Path, m.Version)}
	encoded, ok := strings.CutPrefix(m.Sum, "h1:")
	sum, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(sum) != sha256.Size {
		return c, fmt.Errorf("module %s %s has the sum %q, want one of go.sum", m.Path, m.Version, m.Sum)
	}
	c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
	c.Properties = []property{{"holdfast:go:sum", m.Sum}}
	return c, nil
}

// golang is the package URL of a Go module.
func golang(path, version string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return "pkg:golang/" + strings.Join(parts, "/") + "@" + strings.ReplaceAll(url.PathEscape(version), "+", "%2B")
}

// imageSBOM lists the parts of the image with Envoy: those of the program, Envoy, packages of Debian, and the CA certificates.
func imageSBOM(of bom, i image, p platform, digest, version string, parts []part, certificates *debug.Module, at time.Time) (bom, error) {
	root := component{
		Type: "container", Name: i.name, Version: version, Hashes: []hash{{"SHA-256", strings.TrimPrefix(digest, "sha256:")}}, Licenses: licensed(license),
		PURL: "pkg:oci/" + i.name + "@" + url.QueryEscape(digest) + "?arch=" + p.arch + "&tag=" + version,
	}
	all := append([]component{of.Metadata.Component}, of.Components...)
	for _, one := range parts {
		all = append(all, component{Type: "library", Name: one.name, Version: one.version, Hashes: []hash{{"SHA-256", one.sha256}}, Licenses: licensed(one.license), PURL: one.purl,
			Properties: []property{{"holdfast:file", one.file}}})
	}
	c, err := moduleComponent(certificates)
	if err != nil {
		return bom{}, err
	}
	c.Type = "data"
	return newBOM(root, append(all, c), version, at), nil
}

// newBOM names the components, sorts them, and lets the root depend on all.
func newBOM(root component, parts []component, version string, at time.Time) bom {
	root.Ref = root.PURL
	refs := make([]string, 0, len(parts))
	for i := range parts {
		parts[i].Ref = parts[i].PURL
		refs = append(refs, parts[i].Ref)
	}
	slices.SortFunc(parts, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	slices.Sort(refs)
	return bom{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Serial: "urn:uuid:" + uuidOf(root.PURL+root.Hashes[0].Content),
		Metadata: bomMetadata{
			Timestamp: at.Format(time.RFC3339), Component: root,
			Tools: bomTools{Components: []component{{Type: "application", Name: "holdfast deploy/release", Version: version}}},
		},
		Components: parts, Dependencies: []dependencies{{Ref: root.Ref, DependsOn: refs}},
	}
}

// uuidOf is a UUID of version 8 (RFC 9562, 5.8), made of a text, so that it is the same each time.
func uuidOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// marshal is JSON for people to read.
func marshal(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	return append(data, '\n'), err
}
