package config

import (
	_ "embed"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// FieldState says what holdfast-mesh does with a field of a document.
type FieldState string

const (
	// Supported: the field has the effect that its documentation describes.
	Supported FieldState = "yes"
	// Unsupported: the field has no effect, and a document that sets it gets a warning.
	Unsupported FieldState = "no"
	// Ignored: the field has no meaning for a mesh, such as the image of a container.
	Ignored FieldState = "ignored"
)

// Field is the state of a field of a kind, and of all fields below it that have no state of their
// own.
type Field struct {
	Kind Kind
	// Path is the path of the field with JSON names, where "[]" stands for an element of a list and
	// "{}" for a value of a map: "http[].match[].headers{}.exact". It begins below spec for Istio's
	// kinds, and at the object for those of Kubernetes.
	Path  string
	State FieldState
	// Reason says why the field is not supported; "" if it is.
	Reason string
}

//go:embed fields.txt
var fieldsText string

// Fields returns the states of all fields of all kinds, in the order of fields.txt. It must not be
// changed. Metadata are not among them.
func Fields() []Field { return fieldTable().list }

type fieldsByPath struct {
	list  []Field
	paths map[Kind]map[string]Field
}

// fieldTable panics if fields.txt, which is compiled in, has a wrong line.
var fieldTable = sync.OnceValue(func() fieldsByPath {
	table, err := parseFields(fieldsText)
	if err != nil {
		panic(err)
	}
	return table
})

// parseFields reads lines of kind, path, state and reason. "#" begins a comment.
func parseFields(text string) (fieldsByPath, error) {
	kinds := make(map[string]Kind)
	table := fieldsByPath{paths: make(map[Kind]map[string]Field)}
	for _, s := range Schemas {
		kinds[s.Kind.Label()] = s.Kind
		table.paths[s.Kind] = make(map[string]Field)
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) < 3 {
			return table, fmt.Errorf("fields.txt:%d: a line has a kind, a path, a state and a reason", number)
		}
		f := Field{Kind: kinds[words[0]], Path: words[1], State: FieldState(words[2]), Reason: strings.Join(words[3:], " ")}
		_, twice := table.paths[f.Kind][f.Path]
		switch {
		case f.Kind == "":
			return table, fmt.Errorf("fields.txt:%d: no kind %q", number, words[0])
		case f.State != Supported && f.State != Unsupported && f.State != Ignored:
			return table, fmt.Errorf("fields.txt:%d: the state %q is not yes, no or ignored", number, f.State)
		case f.State == Unsupported && f.Reason == "":
			return table, fmt.Errorf("fields.txt:%d: a field that is not supported needs a reason", number)
		case twice:
			return table, fmt.Errorf("fields.txt:%d: %s %s is there twice", number, words[0], f.Path)
		}
		table.list = append(table.list, f)
		table.paths[f.Kind][f.Path] = f
	}
	return table, nil
}

// Warnings returns a warning for each field that the document sets and that is not supported, with
// the reason. The problems have no file and no line.
func Warnings(c *Config) []Problem {
	var problems []Problem
	for _, f := range unsupported(c) {
		if f.severity == SeverityWarning {
			problems = append(problems, Problem{Code: f.code, Key: c.Meta.Key, Field: f.at.String(), Severity: f.severity, Message: f.message})
		}
	}
	return problems
}

// unsupported returns the findings of Warnings, and an error for each number that is no value of its
// enumeration and each text with a character that has no meaning.
func unsupported(c *Config) []finding {
	w := &fieldWalk{kind: c.Kind, states: fieldTable().paths[c.Kind]}
	if spec, ok := c.Spec.(proto.Message); ok && SchemaOf(c.Kind).IsIstio() {
		root := &path{name: "spec"}
		if c.Kind.ofConfigMap() {
			root = nil
		}
		w.message(root, "", spec.ProtoReflect())
	} else if v := reflect.ValueOf(c.Spec); v.Kind() == reflect.Pointer && !v.IsNil() {
		w.value(nil, "", v)
	}
	return w.findings
}

// fieldWalk visits the fields that a document sets.
type fieldWalk struct {
	kind     Kind
	states   map[string]Field
	findings []finding
}

// enter reports whether the fields below a field are to be visited.
func (w *fieldWalk) enter(at *path, pattern string) bool {
	f := w.states[pattern]
	if f.State == Unsupported {
		w.findings = append(w.findings, finding{FieldNotSupported, at, SeverityWarning, "not supported: " + f.Reason})
	}
	return f.State != Unsupported && f.State != Ignored
}

func join(pattern, name string) string {
	if pattern == "" {
		return name
	}
	return pattern + "." + name
}

// message visits the fields of a message.
func (w *fieldWalk) message(at *path, pattern string, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) {
			continue
		}
		at, pattern, value := at.field(f.JSONName()), join(pattern, f.JSONName()), m.Get(f)
		switch {
		case f.IsMap():
			if pattern += "{}"; w.enter(at, pattern) {
				w.entries(at, pattern, f.MapValue(), value.Map())
			}
		case f.IsList():
			if pattern += "[]"; w.enter(at, pattern) {
				for i := range value.List().Len() {
					w.single(at.at(i), pattern, f, value.List().Get(i))
				}
			}
		case w.enter(at, pattern):
			w.single(at, pattern, f, value)
		}
	}
}

// entries visits the values of a map.
func (w *fieldWalk) entries(at *path, pattern string, f protoreflect.FieldDescriptor, entries protoreflect.Map) {
	byKey := make(map[string]protoreflect.Value)
	entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		byKey[key.String()] = value
		return true
	})
	for _, key := range sortedKeys(byKey) {
		w.single(at.field(key), pattern, f, byKey[key])
	}
}

// single visits a value that is no list and no map.
func (w *fieldWalk) single(at *path, pattern string, f protoreflect.FieldDescriptor, value protoreflect.Value) {
	switch {
	case f.Enum() != nil:
		if f.Enum().Values().ByNumber(value.Enum()) == nil {
			w.findings = append(w.findings, finding{"", at, SeverityError, strconv.Itoa(int(value.Enum())) + " is no value of this field"})
		}
	case f.Kind() == protoreflect.StringKind:
		w.text(at, pattern, value.String())
	case f.Message() != nil && !yamlproto.IsWellKnown(f.Message()):
		w.message(at, pattern, value.Message())
	}
}

// severalLines are the fields of the kinds below that may have line breaks.
var severalLines = map[string]bool{"http[].directResponse.body.string": true}

// oneLine are the kinds whose texts become names, headers and patterns of Envoy, which have no line breaks.
var oneLine = map[Kind]bool{
	VirtualService: true, DestinationRule: true, Gateway: true, Sidecar: true, ServiceEntry: true, WorkloadEntry: true,
	AuthorizationPolicy: true, KubernetesGateway: true, HTTPRoute: true, GRPCRoute: true, TLSRoute: true, TCPRoute: true,
}

// text checks that a text has no character with which Envoy rejects a whole resource: a NUL nowhere, and no line break in
// the texts of some kinds.
func (w *fieldWalk) text(at *path, pattern, value string) {
	switch {
	case strings.ContainsRune(value, 0):
		w.findings = append(w.findings, finding{"", at, SeverityError, "has a NUL character"})
	case oneLine[w.kind] && !severalLines[pattern] && strings.ContainsAny(value, "\r\n"):
		w.findings = append(w.findings, finding{"", at, SeverityError, "has a line break"})
	}
}

// value visits what a Go value has that is not zero.
func (w *fieldWalk) value(at *path, pattern string, v reflect.Value) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if !v.IsValid() || isLeaf(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, name := range sortedKeys(jsonFields(v.Type())) {
			f := v.FieldByIndex(fieldIndex(v.Type(), name))
			if f.IsZero() || pattern == "" && isMetadata(name) {
				continue
			}
			if at, pattern := at.field(name), goPattern(pattern, name, f.Type()); w.enter(at, pattern) {
				w.value(at, pattern, f)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			w.value(at.at(i), pattern, v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			w.value(at.field(key.String()), pattern, v.MapIndex(key))
		}
	case reflect.String:
		w.text(at, pattern, v.String())
	}
}

// isMetadata reports whether a field of an object is one of those that every document has.
func isMetadata(name string) bool {
	return name == "metadata" || name == "apiVersion" || name == "kind"
}

// fieldIndex returns the index sequence of a field that jsonFields returns.
func fieldIndex(t reflect.Type, name string) []int {
	f, _ := t.FieldByName(jsonFields(t)[name].Name)
	return f.Index
}

// goPattern returns the pattern of a field of a Go struct.
func goPattern(pattern, name string, t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	pattern = join(pattern, name)
	switch {
	case t.Kind() == reflect.Map:
		return pattern + "{}"
	case t.Kind() == reflect.Slice && !isLeaf(t):
		return pattern + "[]"
	default:
		return pattern
	}
}
