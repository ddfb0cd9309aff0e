package main

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// statementType is the media type of the provenance in an envelope.
const statementType = "application/vnd.in-toto+json"

// buildType names how a release is made; docs/releasing.md describes its parameters.
const buildType = "https://" + repository + "/blob/main/docs/releasing.md#provenance"

// statement is an in-toto Statement v1 with a predicate of SLSA provenance v1 (https://slsa.dev/spec/v1.0/provenance).
type statement struct {
	Type          string       `json:"_type"`
	Subject       []descriptor `json:"subject"`
	PredicateType string       `json:"predicateType"`
	Predicate     predicate    `json:"predicate"`
}

type descriptor struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	InternalParameters   map[string]string `json:"internalParameters"`
	ResolvedDependencies []descriptor      `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

// origin is what the provenance says of a release.
type origin struct {
	version, builder, toolchain string
	source                      source
	platforms                   []platform
	withoutEnvoy, newerDebian   bool
	fetched                     []part
}

// command is the command line that makes the same bytes from the same commit.
func (o origin) command() string {
	line := "SOURCE_DATE_EPOCH=" + strconv.FormatInt(o.source.time.Unix(), 10) + " make release VERSION=" + o.version
	if len(o.platforms) != len(allPlatforms) {
		line += " PLATFORMS=" + joined(o.platforms)
	}
	switch {
	case o.withoutEnvoy:
		line += " RELEASEFLAGS=-without-envoy"
	case o.newerDebian:
		line += " RELEASEFLAGS=-newer-debian"
	}
	return line
}

func joined(all []platform) string {
	var names []string
	for _, p := range all {
		names = append(names, p.String())
	}
	return strings.Join(names, ",")
}

// provenance says where files come from. It has no time of its own and no name of a machine, so that it is the same each time.
func provenance(o origin, files map[string][]byte) statement {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256(files[name])
		s.Subject = append(s.Subject, descriptor{Name: name, Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = buildType
	d.ExternalParameters = map[string]string{"version": o.version, "platforms": joined(o.platforms), "command": o.command()}
	if o.source.changed {
		d.ExternalParameters["source"] = "the commit, with changes that are not committed: not a release"
	}
	d.InternalParameters = map[string]string{"go": o.toolchain, "sourceDateEpoch": strconv.FormatInt(o.source.time.Unix(), 10)}
	d.ResolvedDependencies = []descriptor{
		{URI: "git+https://" + repository + "@" + o.source.commit, Digest: map[string]string{"gitCommit": o.source.commit}},
		{URI: golang("toolchain", strings.TrimPrefix(o.toolchain, "go"))},
	}
	for _, one := range o.fetched {
		d.ResolvedDependencies = append(d.ResolvedDependencies, descriptor{Name: one.file, URI: one.purl, Digest: map[string]string{"sha256": one.sha256}})
	}
	s.Predicate.RunDetails.Builder.ID = o.builder
	return s
}
