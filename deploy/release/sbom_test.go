package main

import (
	"encoding/base64"
	"encoding/json"
	"runtime/debug"
	"strings"
	"testing"
)

func TestPartsOfAProgram(t *testing.T) {
	sum := "h1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32)))
	p := program{command: "holdfast", platform: platform{"linux", "arm64"}, data: []byte("x"), info: &debug.BuildInfo{
		GoVersion: "go1.26.8", Main: debug.Module{Path: repository, Version: "(devel)"},
		Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "arm64"}},
		Deps: []*debug.Module{
			{Path: "example.com/b/v2", Version: "v2.0.0+incompatible", Sum: sum},
			{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/a", Version: "v1.0.1", Sum: sum}},
		},
	}}
	list, err := sbomOf(p, "v0.1.0", someTime)
	if err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, c := range list.Components {
		refs = append(refs, c.Ref)
	}
	want := "pkg:golang/example.com/a@v1.0.1 pkg:golang/example.com/b/v2@v2.0.0%2Bincompatible pkg:golang/std@1.26.8"
	if got := strings.Join(refs, " "); got != want || list.Components[0].Hashes[0].Content != strings.Repeat("73", 32) {
		t.Errorf("components %s, %+v", got, list.Components)
	}
	if got := list.Metadata.Component.PURL; got != "pkg:golang/github.com/holdfast-xds/holdfast@v0.1.0?goarch=arm64&goos=linux#cmd/holdfast" {
		t.Errorf("purl %s", got)
	}
	again, err := sbomOf(p, "v0.1.0", someTime)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(list)
	if b, _ := json.Marshal(again); string(a) != string(b) {
		t.Error("two lists of the same program differ")
	}
	p.info.Deps[0].Sum = ""
	if _, err := sbomOf(p, "v0.1.0", someTime); err == nil || !strings.Contains(err.Error(), "example.com/b/v2") {
		t.Errorf("a module without a sum: %v", err)
	}
}

func TestTheProvenanceSaysHowToRepeatIt(t *testing.T) {
	o := origin{version: "v0.1.0", builder: "b", toolchain: "go1.26.8", source: source{commit: "c", time: someTime}, platforms: allPlatforms}
	if got := o.command(); got != "SOURCE_DATE_EPOCH=1793534400 make release VERSION=v0.1.0" {
		t.Errorf("command: %s", got)
	}
	o.platforms, o.withoutEnvoy = []platform{{"linux", "amd64"}}, true
	if got := o.command(); got != "SOURCE_DATE_EPOCH=1793534400 make release VERSION=v0.1.0 PLATFORMS=linux/amd64 RELEASEFLAGS=-without-envoy" {
		t.Errorf("command: %s", got)
	}
	s := provenance(o, map[string][]byte{"b": []byte("2"), "a": []byte("1")})
	if len(s.Subject) != 2 || s.Subject[0].Name != "a" || s.Subject[0].Digest["sha256"] != "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b" {
		t.Errorf("subjects: %+v", s.Subject)
	}
	if _, ok := s.Predicate.BuildDefinition.ExternalParameters["source"]; ok {
		t.Error("it is said that there are changes")
	}
	o.source.changed = true
	if s = provenance(o, nil); !strings.Contains(s.Predicate.BuildDefinition.ExternalParameters["source"], "not a release") {
		t.Error("it is not said that there are changes")
	}
}
