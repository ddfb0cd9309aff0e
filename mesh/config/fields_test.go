package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

var update = flag.Bool("update", false, "write docs/mesh-api.md from fields.txt")

// messageFields returns the patterns of all fields of a message, those of messages before what is
// below them, and whether each is a leaf.
func messageFields(d protoreflect.MessageDescriptor, pattern string, visit func(pattern string, leaf bool) (enter bool)) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		pattern, inner := join(pattern, f.JSONName()), f.Message()
		switch {
		case f.IsMap():
			pattern, inner = pattern+"{}", f.MapValue().Message()
		case f.IsList():
			pattern += "[]"
		}
		leaf := inner == nil || yamlproto.IsWellKnown(inner) || inner.Fields().Len() == 0
		if visit(pattern, leaf) && !leaf {
			messageFields(inner, pattern, visit)
		}
	}
}

// structFields is messageFields for a Go type of Kubernetes.
func structFields(t reflect.Type, pattern string, visit func(pattern string, leaf bool) (enter bool)) {
	for t.Kind() == reflect.Pointer || (t.Kind() == reflect.Slice || t.Kind() == reflect.Map) && !isLeaf(t) {
		t = t.Elem()
	}
	if isLeaf(t) {
		return
	}
	fields := jsonFields(t)
	for _, name := range sortedKeys(fields) {
		if pattern == "" && isMetadata(name) {
			continue
		}
		pattern, inner := goPattern(pattern, name, fields[name].Type), fields[name].Type
		for inner.Kind() == reflect.Pointer || (inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map) && !isLeaf(inner) {
			inner = inner.Elem()
		}
		if visit(pattern, isLeaf(inner)) && !isLeaf(inner) {
			structFields(inner, pattern, visit)
		}
	}
}

func kindFields(s Schema, visit func(pattern string, leaf bool) (enter bool)) {
	if m, ok := s.New().(proto.Message); ok && s.IsIstio() {
		messageFields(m.ProtoReflect().Descriptor(), "", visit)
		return
	}
	structFields(reflect.TypeOf(s.New()), "", visit)
}

func TestEveryFieldHasAStateAndEveryStateAField(t *testing.T) {
	for _, s := range Schemas {
		known := make(map[string]bool)
		kindFields(s, func(pattern string, leaf bool) bool {
			known[pattern] = true
			f, stated := fieldTable().paths[s.Kind][pattern]
			switch {
			case stated && f.State == Supported && !leaf:
				t.Errorf("%s %s has fields of its own: give a state to each, so that a new one is noticed", s.Kind.Short(), pattern)
			case !stated && leaf:
				t.Errorf("%s %s has no line in fields.txt", s.Kind.Label(), pattern)
			}
			return !stated
		})
		for _, f := range Fields() {
			if f.Kind == s.Kind && !known[f.Path] {
				t.Errorf("%s %s is no field, or below one that has a state", s.Kind.Short(), f.Path)
			}
		}
	}
}

func TestFieldsMustBeWellFormed(t *testing.T) {
	for _, tc := range []struct{ name, text, err string }{
		{"a wrong kind", "Nothing a yes", `fields.txt:1: no kind "Nothing"`},
		{"a wrong state", "# comment\nSidecar a maybe", `fields.txt:2: the state "maybe" is not yes, no or ignored`},
		{"no state", "Sidecar a", "fields.txt:1: a line has a kind, a path, a state and a reason"},
		{"no reason", "Sidecar a no", "fields.txt:1: a field that is not supported needs a reason"},
		{"a field twice", "Sidecar a yes\nSidecar a ignored", "fields.txt:2: Sidecar a is there twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := parseFields(tc.text); err == nil || err.Error() != tc.err {
				t.Errorf("error %v, want %s", err, tc.err)
			}
		})
	}
}

func TestThePageOfTheAPIIsThatOfTheFields(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "mesh-api.md")
	want := apiPage()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("docs/mesh-api.md is not that of fields.txt (%v): run go test ./mesh/config -update", err)
	}
}

// apiPage returns the page of all fields.
func apiPage() string {
	var b strings.Builder
	b.WriteString("# Fields that holdfast-mesh reads\n\n" +
		"This page is generated from `mesh/config/fields.txt`: `go test ./mesh/config -update`.\n\n" +
		"A field is supported (yes), or has no effect and a warning says so (no), or has no meaning for a mesh (ignored).\n" +
		"`[]` stands for an element of a list and `{}` for a value of a map. The fields of a message that is not supported, or\n" +
		"ignored, have its state. Paths begin below `spec` for the kinds of Istio, and at the object for those of Kubernetes.\n\n" +
		"A `regex` is one of RE2 that both Envoy 1.36, which reads UTF-8, and 1.40, which reads bytes, take. Values of headers are formats with the\n" +
		"commands that both know (`%REQ(name)%`); those of access logs may have commands of 1.40 alone.\n")
	for _, s := range Schemas {
		fmt.Fprintf(&b, "\n## %s\n\n", s.Kind.Label())
		if s.Kind.ofConfigMap() {
			key := map[Kind]string{MeshConfig: meshKey, MeshNetworks: networksKey}[s.Kind]
			fmt.Fprintf(&b, "The key `%s` of the ConfigMap `%s` in the namespace `%s`.\n", key, MeshName, RootNamespace)
		} else {
			var versions []string
			for _, version := range s.Versions {
				versions = append(versions, "`"+strings.TrimPrefix(s.Group+"/"+version, "/")+"`")
			}
			fmt.Fprintf(&b, "Versions: %s.\n", strings.Join(versions, ", "))
		}
		b.WriteString("\n| field | supported | reason |\n| --- | --- | --- |\n")
		for _, f := range Fields() {
			if f.Kind == s.Kind {
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Path, f.State, f.Reason)
			}
		}
	}
	return b.String()
}

func TestFieldsAreInTheOrderOfTheKinds(t *testing.T) {
	var order []Kind
	for _, f := range Fields() {
		if len(order) == 0 || order[len(order)-1] != f.Kind {
			order = append(order, f.Kind)
		}
	}
	var want []Kind
	for _, s := range Schemas {
		want = append(want, s.Kind)
	}
	if !slices.Equal(order, want) {
		t.Errorf("the kinds are in the order %q, want %q", order, want)
	}
}

func TestWarningsNameTheFieldsThatAreNotSupported(t *testing.T) {
	fault := &networking.HTTPFaultInjection{Abort: &networking.HTTPFaultInjection_Abort{ErrorType: &networking.HTTPFaultInjection_Abort_Http2Error{Http2Error: "a"}}}
	c := &Config{Meta: Meta{Key: Key{VirtualService, "a", "b"}}, Spec: &networking.VirtualService{
		Http: []*networking.HTTPRoute{{}, {Fault: fault, CorsPolicy: &networking.CorsPolicy{UnmatchedPreflights: 99}}},
		Tcp:  []*networking.TCPRoute{{Match: []*networking.L4MatchAttributes{{SourceSubnet: "10.0.0.0/8"}}}},
	}}
	var got []string
	for _, p := range Warnings(c) {
		got = append(got, p.String())
	}
	compare(t, got, []string{
		"VirtualService a/b: spec.http[1].fault.abort.http2Error: warning: not supported: Envoy has no such abort: write httpStatus or grpcStatus [HM0101]",
		"VirtualService a/b: spec.tcp[0].match[0].sourceSubnet: warning: not supported: reserved: Istio does not implement it [HM0101]",
	})
	if got := Warnings(&Config{Meta: Meta{Key: Key{Pod, "a", "b"}}, Spec: &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{{Name: "v"}}}}}); len(got) > 0 {
		t.Errorf("fields that have no meaning get warnings: %v", got)
	}
}
