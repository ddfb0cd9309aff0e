package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

const statusVersion = 1

// status is the annotation holdfast.dev/status, as JSON. Paths are JSON pointers from the pod template, in which a
// container's name stands for its index.
type status struct {
	Version        int      `json:"version"` // of this form
	Shape          Shape    `json:"shape"`
	InitContainers []string `json:"initContainers"`
	Volumes        []string `json:"volumes"`
	// Created lists collections that were not there, and are removed if they are empty.
	Created []string `json:"created,omitempty"`
	// Set lists fields that were not there.
	Set []string `json:"set,omitempty"`
	// Former has the values of fields that were changed, as they were written; "" for none after the colon.
	Former map[string]string `json:"former,omitempty"`
	// Put has the values, as JSON, that the fields of Set and Former got.
	Put map[string]json.RawMessage `json:"put,omitempty"`
	// Label is whether the object around the template got the label of the pods: "set", or "created" if it had no labels.
	Label string `json:"label,omitempty"`
}

func (s status) node() *yaml.Node {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // texts and numbers are always encoded
	}
	n := scalar(string(text))
	n.Style = yaml.SingleQuotedStyle
	return n
}

// errStatus is the error for an annotation that holdfast did not write.
func errStatus(what string) error {
	return fmt.Errorf("its annotation %s %s: restore what `holdfast inject` wrote, or remove the annotation and what was injected by hand", statusAnnotation, what)
}

// undoable are the fields that an injection sets, with * for the name of a container.
var undoable = []string{
	"/metadata", "/metadata/labels", "/metadata/annotations", "/metadata/labels/" + "holdfast.dev~1shape",
	"/spec/initContainers", "/spec/volumes", "/spec/securityContext", "/spec/securityContext/fsGroup",
	"/spec/terminationGracePeriodSeconds", "/spec/containers/*/lifecycle", "/spec/containers/*/lifecycle/preStop",
}

// readStatus returns the status of a template, nil if it was not injected.
func readStatus(template *yaml.Node) (*status, error) {
	annotation := yamledit.Value(yamledit.Value(yamledit.Value(template, "metadata"), "annotations"), statusAnnotation)
	if annotation == nil {
		return nil, nil
	}
	if len(annotation.Value) > maxAnnotations {
		return nil, errStatus("is longer than Kubernetes allows")
	}
	var s status
	decoder := json.NewDecoder(strings.NewReader(annotation.Value))
	if err := decoder.Decode(&s); err != nil || decoder.More() {
		return nil, errStatus("is not that of an injection")
	}
	if s.Version != statusVersion {
		return nil, fmt.Errorf("its annotation %s has version %d, and this holdfast knows version %d: use the holdfast that injected it", statusAnnotation, s.Version, statusVersion)
	}
	for _, path := range slices.Concat(s.Created, s.Set, slices.Sorted(maps.Keys(s.Former))) {
		parts := strings.Split(path, "/")
		if len(parts) > 3 && parts[2] == "containers" {
			parts[3] = "*"
		}
		if !slices.Contains(undoable, strings.Join(parts, "/")) {
			return nil, errStatus(fmt.Sprintf("names the field %q, which no injection changes", path))
		}
	}
	return &s, nil
}

// Undo takes away what an injection has added to a template, and reports whether there was one. What was changed since
// by others stays: a field is only removed or restored if it has the value that the status says it was given.
func Undo(template *yaml.Node) (bool, error) {
	s, err := readStatus(template)
	if err != nil || s == nil {
		return false, err
	}
	t := &target{template: template}
	spec := t.own(template, "spec")
	for key, names := range map[string][]string{"initContainers": s.InitContainers, "volumes": s.Volumes} {
		if of := t.own(spec, key); of != nil && of.Kind == yaml.SequenceNode {
			of.Content = slices.DeleteFunc(of.Content, func(n *yaml.Node) bool { return slices.Contains(names, text(n, "name")) })
		}
	}
	annotations := t.own(t.own(template, "metadata"), "annotations")
	remove(annotations, statusAnnotation)
	remove(annotations, settingsAnnotation)
	for _, path := range s.Set {
		if m, key := t.field(path); s.given(m, key, path) {
			remove(m, key)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.Former)) {
		if m, key := t.field(path); s.given(m, key, path) {
			former := &yaml.Node{Kind: yaml.ScalarNode, Value: s.Former[path]}
			if former.Value == "" {
				former.Tag = "!!null"
			}
			put(m, key, former)
		}
	}
	for _, path := range slices.Backward(s.Created) {
		if m, key := t.field(path); m != nil {
			if i := indexOf(m, key); i >= 0 && len(m.Content[i+1].Content) == 0 && m.Content[i+1].Kind != yaml.AliasNode {
				remove(m, key)
			}
		}
	}
	return true, t.err
}

// given reports whether a field is there with the value that the injection gave it.
func (s *status) given(m *yaml.Node, key, path string) bool {
	i := indexOf(m, key)
	if i < 0 {
		return false
	}
	value, err := yamledit.JSON(m.Content[i+1])
	return err == nil && bytes.Equal(value, s.Put[path])
}

var unpointer = strings.NewReplacer("~1", "/", "~0", "~")

// field returns the mapping that has the field at a path, and its key; nil if there is none.
func (t *target) field(path string) (*yaml.Node, string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i := range parts {
		parts[i] = unpointer.Replace(parts[i])
	}
	m := t.template
	for i := 0; i < len(parts)-1; i++ {
		if m = t.own(m, parts[i]); m == nil {
			return nil, ""
		}
		if m.Kind == yaml.SequenceNode {
			i++
			at := slices.IndexFunc(m.Content, func(n *yaml.Node) bool { return text(n, "name") == parts[i] })
			if at < 0 {
				return nil, ""
			}
			m = t.element(m, at)
		}
	}
	if m.Kind != yaml.MappingNode {
		return nil, ""
	}
	return m, parts[len(parts)-1]
}
