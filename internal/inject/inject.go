// Package inject adds holdfast and Envoy to pod templates, and takes them away again: for `holdfast inject` and
// `holdfast uninject`, which change files as text (Stream), and for a mutating webhook, which answers with a JSON patch
// (Review).
//
// What is added is in templates/, one file for each shape, and is what the overlays in deploy/ have. The annotation
// holdfast.dev/status says what was added and what was there before, so that Undo restores it; Pod undoes a former
// injection first, so that a second one with the same settings changes nothing. What cannot work is an error that says
// what to do: a pod is injected as a whole or not at all.
//
// Nothing here knows Kubernetes' Go types: fields that are newer than this package pass through. Functions may be
// called concurrently, each with a tree of its own.
package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// ErrLeftAlone is the error for a pod with the annotation holdfast.dev/inject: "false".
var ErrLeftAlone = errors.New(`left alone: its annotation holdfast.dev/inject is "false"`)

// Pod injects into a pod template, or a Pod: a mapping with metadata and spec. It changes the tree, which may have been
// injected before. A template with holdfast.dev/inject: "false" is as it was before any injection, and the error is ErrLeftAlone.
// After any other error the tree is of no use. Warnings are sentences for the user.
func Pod(template *yaml.Node, s Settings) (warnings []string, err error) {
	if _, err := Undo(template); err != nil {
		return nil, err
	}
	s, warnings, err = s.of(template)
	if err != nil {
		return nil, err
	}
	if err := refuse(template); err != nil {
		return nil, err
	}
	added, err := s.template(template)
	if err != nil {
		return nil, err
	}
	t := &target{template: template, status: status{Version: statusVersion, Shape: s.Shape}}
	t.add(added, s)
	return warnings, t.err
}

// target is a pod template that is being injected.
type target struct {
	template *yaml.Node
	status   status
	err      error
}

// add merges what is added into the template.
func (t *target) add(added *yaml.Node, s Settings) {
	for _, c := range yamledit.Value(yamledit.Value(added, "spec"), "initContainers").Content {
		t.status.InitContainers = append(t.status.InitContainers, text(c, "name"))
	}
	for _, v := range yamledit.Value(yamledit.Value(added, "spec"), "volumes").Content {
		t.status.Volumes = append(t.status.Volumes, text(v, "name"))
	}
	metadata := t.child(t.template, "metadata", "/metadata", yaml.MappingNode, "")
	spec := t.child(t.template, "spec", "/spec", yaml.MappingNode, "")
	labels := t.child(metadata, "labels", "/metadata/labels", yaml.MappingNode, "")
	annotations := t.child(metadata, "annotations", "/metadata/annotations", yaml.MappingNode, "")
	for _, key := range keys(yamledit.Value(yamledit.Value(added, "metadata"), "labels")) {
		t.set(labels, key.Content[0].Value, "/metadata/labels/"+yamledit.Token(key.Content[0].Value), key.Content[1])
	}
	if settings := yamledit.Value(yamledit.Value(yamledit.Value(added, "metadata"), "annotations"), settingsAnnotation); settings != nil {
		put(annotations, settingsAnnotation, settings)
	}
	security := t.child(spec, "securityContext", "/spec/securityContext", yaml.MappingNode, "containers")
	if yamledit.IsNull(yamledit.Value(security, "fsGroup")) {
		t.set(security, "fsGroup", "/spec/securityContext/fsGroup", yamledit.Value(yamledit.Value(yamledit.Value(added, "spec"), "securityContext"), "fsGroup"))
	}
	t.grace(spec, s)
	t.sleeps(spec, s)
	first := t.child(spec, "initContainers", "/spec/initContainers", yaml.SequenceNode, "containers")
	volumes := t.child(spec, "volumes", "/spec/volumes", yaml.SequenceNode, "")
	if t.err != nil {
		return
	}
	first.Content = slices.Concat(yamledit.Value(yamledit.Value(added, "spec"), "initContainers").Content, first.Content)
	volumes.Content = append(volumes.Content, yamledit.Value(yamledit.Value(added, "spec"), "volumes").Content...)
	status := t.status.node()
	if len(status.Value) > maxAnnotations {
		t.fail("it has so many containers that the annotation %s would have %d KiB, and Kubernetes allows %d", statusAnnotation, len(status.Value)>>10, maxAnnotations>>10)
		return
	}
	put(annotations, statusAnnotation, status)
}

// grace gives the pod the time that its end takes.
func (t *target) grace(spec *yaml.Node, s Settings) {
	const key = "terminationGracePeriodSeconds"
	had := yamledit.Value(spec, key)
	seconds := defaultGrace
	if !yamledit.IsNull(had) {
		var n int64
		if had.Decode(&n) != nil {
			t.fail("spec.%s is %q: want a number of seconds", key, had.Value)
			return
		}
		seconds = n
	}
	if end := s.end(); seconds <= int64(end.Seconds()) {
		t.set(spec, key, "/spec/"+key, integer(int64((end + graceReserve).Seconds())))
	}
}

// sleeps lets the user's containers answer until Envoy has drained.
func (t *target) sleeps(spec *yaml.Node, s Settings) {
	if s.PreStopSleep == 0 || isText(spec, "restartPolicy", "Never", "OnFailure") {
		return
	}
	containers := t.own(spec, "containers")
	for i := 0; containers != nil && i < len(containers.Content); i++ {
		name := text(containers.Content[i], "name")
		if hook := yamledit.Value(yamledit.Value(containers.Content[i], "lifecycle"), "preStop"); !yamledit.IsNull(hook) {
			continue
		}
		container := t.element(containers, i)
		path := "/spec/containers/" + yamledit.Token(name) + "/lifecycle"
		lifecycle := t.child(container, "lifecycle", path, yaml.MappingNode, "")
		sleep := mapping("sleep", mapping("seconds", integer(int64(s.PreStopSleep.Seconds()))))
		sleep.Content[1].Style = yaml.FlowStyle
		t.set(lifecycle, "preStop", path+"/preStop", sleep)
	}
}

func (t *target) fail(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf(format, args...)
	}
}

// own returns the value of a key, to be changed: an alias is written out. It is nil if the key is missing or null.
func (t *target) own(m *yaml.Node, key string) *yaml.Node {
	if m == nil || t.err != nil {
		return nil
	}
	if yamledit.Merges(m) {
		t.fail("the mapping in line %d has the merge key <<: write out what it adds, since holdfast has to change it", m.Line)
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value != key {
			continue
		}
		if m.Content[i+1].Kind == yaml.AliasNode {
			expanded, err := yamledit.Expand(m.Content[i+1])
			if err != nil {
				t.fail("%s: %w", key, err)
				return nil
			}
			m.Content[i+1] = expanded
		}
		if yamledit.IsNull(m.Content[i+1]) {
			return nil
		}
		return m.Content[i+1]
	}
	return nil
}

// element returns an element of a list of mappings, to be changed.
func (t *target) element(list *yaml.Node, i int) *yaml.Node {
	if list.Content[i].Kind == yaml.AliasNode {
		expanded, err := yamledit.Expand(list.Content[i])
		if err != nil {
			t.fail("%w", err)
			return nil
		}
		list.Content[i] = expanded
	}
	return list.Content[i]
}

// child returns the collection at a key, to be changed. One that is missing is made, before the key before if that is
// there, and noted in the status.
func (t *target) child(m *yaml.Node, key, path string, kind yaml.Kind, before string) *yaml.Node {
	found := t.own(m, key)
	switch {
	case t.err != nil:
		return nil
	case found != nil && found.Kind != kind:
		t.fail("%s is not what Kubernetes wants there: want a mapping or a list", strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "."))
		return nil
	case found != nil:
		return found
	}
	made := &yaml.Node{Kind: kind, Tag: tagOf(kind)}
	if i := indexOf(m, key); i >= 0 { // null
		made.Line = m.Content[i+1].Line
		m.Content[i+1] = made
		return made
	}
	t.status.Created = append(t.status.Created, path)
	at := len(m.Content)
	if i := indexOf(m, before); i >= 0 {
		at = i
	}
	m.Content = slices.Insert(m.Content, at, scalar(key), made)
	return made
}

// set sets a field and notes what it was.
func (t *target) set(m *yaml.Node, key, path string, value *yaml.Node) {
	if m == nil || t.err != nil {
		return
	}
	if i := indexOf(m, key); i >= 0 {
		was := yamledit.Target(m.Content[i+1])
		if was == nil || was.Kind != yaml.ScalarNode {
			t.fail("%s is not a number or a text", strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "."))
			return
		}
		if was.Value == value.Value && was.ShortTag() == value.ShortTag() {
			return
		}
		if t.status.Former == nil {
			t.status.Former = make(map[string]string)
		}
		t.status.Former[path] = was.Value
	} else {
		t.status.Set = append(t.status.Set, path)
	}
	text, err := yamledit.JSON(value)
	if err != nil {
		t.fail("%s: %w", path, err)
		return
	}
	if t.status.Put == nil {
		t.status.Put = make(map[string]json.RawMessage)
	}
	t.status.Put[path] = text
	put(m, key, value)
}
