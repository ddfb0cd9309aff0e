package config

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-xds/holdfast/internal/nearest"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// kubernetes decodes the whole object of a kind of Kubernetes. Its metadata are those of c.
func (d *document) kubernetes(c *Config) {
	object := reflect.ValueOf(c.Spec)
	content := d.root.Without("apiVersion", "kind", "metadata", "status")
	d.strict(content, object.Type())
	if Invalid(d.problems) {
		return
	}
	// The check has decoded every value already.
	if err := json.Unmarshal(content.JSON(), c.Spec); err != nil {
		d.addAt(d.root, "%s", jsonMessage(err))
		return
	}
	if status := d.root.Get("status"); status != nil {
		d.status(status, object.Elem().FieldByName("Status"))
	}
	meta := metav1.ObjectMeta{Name: c.Name, Namespace: c.Namespace, Labels: c.Labels, Annotations: c.Annotations, Generation: c.Generation}
	if !c.Created.IsZero() {
		meta.CreationTimestamp = metav1.NewTime(c.Created)
	}
	object.Elem().FieldByName("ObjectMeta").Set(reflect.ValueOf(meta))
	object.Elem().FieldByName("TypeMeta").Set(reflect.ValueOf(metav1.TypeMeta{APIVersion: c.APIVersion, Kind: c.Kind.Short()}))
}

// status decodes a status. A cluster writes it and not a person: what is not known in it is ignored.
func (d *document) status(status *yamlproto.Node, into reflect.Value) {
	if !into.IsValid() {
		return
	}
	if err := json.Unmarshal(status.JSON(), into.Addr().Interface()); err != nil {
		d.addAt(status, "%s", jsonMessage(err))
	}
}

// jsonMessage returns the text of an error of a decoder without values of the document.
func jsonMessage(err error) string {
	if wrong, ok := err.(*json.UnmarshalTypeError); ok {
		what, _, _ := strings.Cut(wrong.Value, " ")
		return "must be " + typeName(wrong.Type) + ", and is a " + what
	}
	return err.Error()
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "a mapping"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	default:
		return "a number (" + t.Kind().String() + ")"
	}
}

// isLeaf reports whether values of a type are decoded as a whole.
func isLeaf(t reflect.Type) bool {
	for _, leaf := range []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()} {
		if t.Implements(leaf) || reflect.PointerTo(t).Implements(leaf) {
			return true
		}
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return false
	case reflect.Slice:
		return t.Elem().Kind() == reflect.Uint8
	default:
		return true
	}
}

// knownFields has what jsonFields has returned, by type.
var knownFields sync.Map

// jsonFields returns the fields of a struct by their JSON names; those of embedded structs are its
// own. The result must not be changed.
func jsonFields(t reflect.Type) map[string]reflect.StructField {
	if known, ok := knownFields.Load(t); ok {
		return known.(map[string]reflect.StructField)
	}
	fields := make(map[string]reflect.StructField)
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && (f.Anonymous || strings.Contains(options, "inline")):
			for inner, field := range jsonFields(f.Type) {
				fields[inner] = field
			}
		case name != "":
			fields[name] = f
		}
	}
	knownFields.Store(t, fields)
	return fields
}

// strict adds an error for each field of a node that a Go type does not have, and for each value
// that it cannot have.
func (d *document) strict(node *yamlproto.Node, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if node.IsNull() {
		return
	}
	switch {
	case isLeaf(t):
		switch err := json.Unmarshal(node.JSON(), reflect.New(t).Interface()); {
		case err == nil:
		case t.Kind() == reflect.Slice:
			d.addAt(node, "must be a string in base64")
		default:
			d.addAt(node, "%s", jsonMessage(err))
		}
	case t.Kind() == reflect.Slice && node.IsList():
		for _, element := range node.Elements() {
			d.strict(element, t.Elem())
		}
	case t.Kind() == reflect.Map && node.IsMapping():
		for _, key := range node.Keys() {
			d.strict(node.Get(key), t.Elem())
		}
	case t.Kind() == reflect.Struct && node.IsMapping():
		fields := jsonFields(t)
		for _, key := range node.Keys() {
			f, known := fields[key]
			if !known {
				field := strings.TrimPrefix(strings.TrimPrefix(node.Get(key).Field(), d.prefix), ".")
				d.add(nil, node.LineOf(key), "", field, "unknown field"+nearest.Question("", key, sortedKeys(fields)))
				continue
			}
			d.strict(node.Get(key), f.Type)
		}
	default:
		d.addAt(node, "must be %s", typeName(t))
	}
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
