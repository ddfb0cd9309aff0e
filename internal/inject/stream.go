package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// Result is what became of an object that has a pod template.
type Result struct {
	// Object is its kind, namespace and name, such as "Deployment shop/web".
	Object string
	// Document counts the documents of the input, from 1, and Line is where the object's document begins in it.
	Document, Line int
	// Changed is whether the object was changed; Note says what was done or why nothing was.
	Changed bool
	Note    string
	// Warnings are sentences for the user.
	Warnings []string
	// Err is why it is rejected; nil if it is not. A rejected object is as it was.
	Err error
}

// change changes one object. workload is the object around the template; both are the same for a Pod.
type change func(workload, template *yaml.Node) (note string, warnings []string, err error)

// Inject injects into every object with a pod template in a text: YAML of any number of documents, or JSON. All else keeps
// its bytes. A document that cannot be read is refused, too.
func Inject(text []byte, s Settings) ([]byte, []Result) {
	return stream(text, func(workload, template *yaml.Node) (string, []string, error) {
		if err := undoLabel(workload, template); err != nil {
			return "", nil, err
		}
		warnings, err := Pod(template, s)
		if errors.Is(err, ErrLeftAlone) {
			return err.Error(), nil, nil
		}
		if err == nil {
			err = addLabel(workload, template)
		}
		return "injected", warnings, err
	})
}

// Uninject takes away what Inject has added to the objects of a text.
func Uninject(text []byte) ([]byte, []Result) {
	return stream(text, func(workload, template *yaml.Node) (string, []string, error) {
		if err := undoLabel(workload, template); err != nil {
			return "", nil, err
		}
		was, err := Undo(template)
		if !was {
			return "is not injected", nil, err
		}
		return "uninjected", nil, err
	})
}

// addLabel gives the object around a template the label of the pods, by which the components in deploy/ find it.
func addLabel(workload, template *yaml.Node) error {
	if workload == template {
		return nil
	}
	t := &target{template: workload}
	metadata := t.child(workload, "metadata", "", yaml.MappingNode, "")
	if t.err != nil {
		return t.err
	}
	if text(yamledit.Value(metadata, "labels"), shapeLabel) != "" {
		return nil
	}
	created := indexOf(metadata, "labels") < 0
	labels := t.child(metadata, "labels", "", yaml.MappingNode, "")
	if t.err != nil {
		return t.err
	}
	put(labels, shapeLabel, scalar("sidecar"))
	annotations := yamledit.Value(yamledit.Value(template, "metadata"), "annotations")
	s, err := readStatus(template)
	if err != nil || s == nil {
		return err
	}
	s.Label = "set"
	if created {
		s.Label = "created"
	}
	put(annotations, statusAnnotation, s.node())
	return nil
}

// undoLabel undoes addLabel.
func undoLabel(workload, template *yaml.Node) error {
	s, err := readStatus(template)
	if err != nil || s == nil || s.Label == "" || workload == template {
		return err
	}
	t := &target{template: workload}
	metadata := t.own(workload, "metadata")
	labels := t.own(metadata, "labels")
	if t.err != nil || labels == nil {
		return t.err
	}
	remove(labels, shapeLabel)
	if s.Label == "created" && len(labels.Content) == 0 {
		remove(metadata, "labels")
	}
	return nil
}

// templates of kinds: where they are, and in which groups of the API.
var kinds = map[string]struct {
	groups string
	path   []string
}{
	"Pod":                   {"", nil},
	"PodTemplate":           {"", []string{"template"}},
	"ReplicationController": {"", []string{"spec", "template"}},
	"Deployment":            {"apps extensions", []string{"spec", "template"}},
	"StatefulSet":           {"apps", []string{"spec", "template"}},
	"DaemonSet":             {"apps extensions", []string{"spec", "template"}},
	"ReplicaSet":            {"apps extensions", []string{"spec", "template"}},
	"Job":                   {"batch", []string{"spec", "template"}},
	"CronJob":               {"batch", []string{"spec", "jobTemplate", "spec", "template"}},
}

// injectable reports whether an object of a group and a kind has a pod template.
func injectable(apiVersion, kind string) bool {
	group, _, hasGroup := strings.Cut(apiVersion, "/")
	if !hasGroup {
		group = ""
	}
	k, ok := kinds[kind]
	if group == "" {
		return ok && k.groups == ""
	}
	return ok && slices.Contains(strings.Fields(k.groups), group)
}

// stream changes every object of a text.
func stream(text []byte, do change) ([]byte, []Result) {
	if bytes.IndexByte(text[:min(len(text), 64)], 0) >= 0 { // no character of YAML or JSON is one
		return text, []Result{{Object: "the text", Document: 1, Line: 1, Err: errors.New("it is not UTF-8: save it as UTF-8, for PowerShell with Set-Content -Encoding utf8")}}
	}
	var out bytes.Buffer
	var results []Result
	line := 1
	for i, part := range split(text) {
		changed, of := document(part, do)
		for _, r := range of {
			r.Document, r.Line = i+1, line
			r.Err = shift(r.Err, line-1)
			results = append(results, r)
		}
		out.Write(changed)
		line += bytes.Count(part, []byte("\n"))
	}
	return out.Bytes(), results
}

var lineNumber = regexp.MustCompile(`\bline (\d+)`)

// shift returns an error that counts lines from an earlier one.
func shift(err error, by int) error {
	if err == nil || by == 0 {
		return err
	}
	return errors.New(lineNumber.ReplaceAllStringFunc(err.Error(), func(found string) string {
		n, _ := strconv.Atoi(found[len("line "):])
		return fmt.Sprintf("line %d", n+by)
	}))
}

// bom is the byte order mark.
var bom = []byte("\ufeff")

// document changes the objects of one document.
func document(part []byte, do change) ([]byte, []Result) {
	mark, rest := []byte(nil), part
	if bytes.HasPrefix(rest, bom) {
		mark, rest = bom, rest[len(bom):]
	}
	head, tail := heading(rest), []byte(nil)
	body := rest[len(head):]
	// Lines that end a document are none of the value's.
	if i := lastLine(body); bytes.HasPrefix(body[i:], []byte("...")) {
		body, tail = body[:i], body[i:]
	}
	if !mayHaveTemplate(body) {
		return part, nil
	}
	before := bytes.Count(head, []byte("\n")) // lines
	d, err := yamledit.Parse(body)
	if err != nil {
		return part, []Result{{Object: "a document", Err: shift(fmt.Errorf("it cannot be read as YAML or JSON: %w", err), before)}}
	}
	if d.Root == nil || d.Root.Kind != yaml.MappingNode {
		return part, nil
	}
	after := yamledit.Clone(d.Root)
	results := objects(after, "", "", do)
	if len(results) == 0 {
		return part, nil
	}
	if err := d.RepeatedKey(); err != nil {
		return part, []Result{{Object: results[0].Object, Err: shift(err, before)}}
	}
	if slices.ContainsFunc(results, func(r Result) bool { return r.Err != nil }) {
		for i := range results {
			results[i].Err = shift(results[i].Err, before)
		}
		// One object of a List that is refused keeps the whole List as it was.
		for i := range results {
			if results[i].Err == nil {
				results[i].Changed, results[i].Note = false, "not changed, because another object of its list is rejected"
			}
		}
		return part, results
	}
	edited, err := d.Edited(after)
	if err != nil {
		return part, []Result{{Object: results[0].Object, Err: shift(err, before)}}
	}
	changed := !bytes.Equal(edited, body)
	for i := range results {
		results[i].Changed = changed && results[i].Changed
	}
	return slices.Concat(mark, head, edited, tail), results
}

// mayHaveTemplate reports whether a document is worth parsing: it names a kind with a template, or a list.
func mayHaveTemplate(body []byte) bool {
	for kind := range kinds {
		if bytes.Contains(body, []byte(kind)) {
			return true
		}
	}
	return bytes.Contains(body, []byte("\\u")) // JSON may write a letter in this way
}

// objects changes an object, or those of a list. kind and apiVersion are those of the list's elements if it says so.
func objects(n *yaml.Node, apiVersion, kind string, do change) []Result {
	if own := text(n, "kind"); own != "" {
		kind = own
	}
	if own := text(n, "apiVersion"); own != "" {
		apiVersion = own
	}
	if !injectable(apiVersion, kind) {
		items := yamledit.Value(n, "items")
		if !strings.HasSuffix(kind, "List") || items == nil || items.Kind != yaml.SequenceNode {
			return nil
		}
		var all []Result
		for i, item := range items.Content {
			if item.Kind == yaml.AliasNode {
				expanded, err := yamledit.Expand(item)
				if err != nil {
					return []Result{{Object: kind, Err: err}}
				}
				if of := objects(expanded, apiVersion, strings.TrimSuffix(kind, "List"), do); len(of) > 0 {
					items.Content[i] = expanded
					all = append(all, of...)
				}
				continue
			}
			if item.Kind == yaml.MappingNode {
				all = append(all, objects(item, apiVersion, strings.TrimSuffix(kind, "List"), do)...)
			}
		}
		return all
	}
	return []Result{object(n, kind, do)}
}

// object changes one object.
func object(n *yaml.Node, kind string, do change) Result {
	r := Result{Object: kind + " " + nameOf(n)}
	if owner := controller(n); owner != "" {
		r.Note = "left alone: it is made by " + owner
		return r
	}
	t := &target{template: n}
	template := n
	for _, key := range kinds[kind].path {
		if template = t.own(template, key); template == nil || template.Kind != yaml.MappingNode {
			break
		}
	}
	switch {
	case t.err != nil:
		r.Err = t.err
	case template == nil || template.Kind != yaml.MappingNode:
		r.Err = fmt.Errorf("it has no pod template: add %s", strings.Join(kinds[kind].path, "."))
	default:
		before := yamledit.Clone(n)
		r.Note, r.Warnings, r.Err = do(n, template)
		if r.Changed = r.Err == nil && !yamledit.Same(before, n); !r.Changed {
			*n = *before // an alias on the way to the template need not be written out
		}
	}
	return r
}

// controller returns the kind and name of what an object was made by; "" for none.
func controller(n *yaml.Node) string {
	for _, owner := range list(yamledit.Value(n, "metadata"), "ownerReferences") {
		if isTrue(owner, "controller") && text(owner, "kind") != "Node" {
			return text(owner, "kind") + " " + text(owner, "name")
		}
	}
	return ""
}

func nameOf(n *yaml.Node) string {
	metadata := yamledit.Value(n, "metadata")
	name := text(metadata, "name")
	if name == "" && text(metadata, "generateName") != "" {
		name = text(metadata, "generateName") + "*"
	}
	if name == "" {
		name = "(without a name)"
	}
	if namespace := text(metadata, "namespace"); namespace != "" {
		return namespace + "/" + name
	}
	return name
}

// split cuts a text into documents, which together are the text: each begins with its line ---, and ends before the
// next one. Values of JSON that follow one another are documents, too.
func split(text []byte) [][]byte {
	if parts := splitJSON(text); parts != nil {
		return parts
	}
	var parts [][]byte
	start, content, ended := 0, false, false
	for at := 0; at < len(text); {
		next := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		line := text[at:next]
		switch {
		case marker(line, "---"):
			// Directives and comments before it belong to it.
			if content || ended {
				parts = append(parts, text[start:at])
				start, ended = at, false
			}
			content = true
		case marker(line, "..."):
			content, ended = false, true
		case ended:
			parts = append(parts, text[start:at])
			start, ended = at, false
			content = isContent(line)
		default:
			content = content || isContent(line)
		}
		at = next
	}
	parts = append(parts, text[start:])
	for i := 0; i < len(parts); i++ {
		if values := splitJSON(parts[i]); len(values) > 1 {
			parts = slices.Replace(parts, i, i+1, values...)
			i += len(values) - 1
		}
	}
	return parts
}

// marker reports whether a line is a marker of YAML, perhaps with something behind it.
func marker(line []byte, mark string) bool {
	line = bytes.TrimPrefix(line, bom)
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

func isContent(line []byte) bool {
	line = bytes.TrimSpace(bytes.TrimPrefix(line, bom))
	return len(line) > 0 && line[0] != '#' && line[0] != '%'
}

// splitJSON is split for values of JSON that follow one another; nil if the text is something else.
func splitJSON(text []byte) [][]byte {
	rest := bytes.TrimSpace(bytes.TrimPrefix(text, bom))
	if len(rest) == 0 || rest[0] != '{' {
		return nil
	}
	skipped := len(text) - len(bytes.TrimPrefix(text, bom))
	decoder := json.NewDecoder(bytes.NewReader(text[skipped:]))
	var parts [][]byte
	start := 0
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || len(value) == 0 || value[0] != '{' {
			return nil
		}
		end := skipped + int(decoder.InputOffset())
		parts = append(parts, text[start:end])
		start = end
	}
	if len(parts) > 0 {
		parts[len(parts)-1] = text[start-len(parts[len(parts)-1]):]
	}
	return parts
}

// heading returns the lines before a value: directives, comments, and the line --- if nothing is behind it.
func heading(text []byte) []byte {
	at := 0
	for at < len(text) {
		next := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		line := text[at:next]
		if marker(line, "---") {
			rest := bytes.TrimSpace(line[3:])
			if len(rest) > 0 && rest[0] != '#' {
				return text[:0] // a value in the line of the marker: the parser takes all
			}
			return text[:next]
		}
		if isContent(line) {
			return text[:0]
		}
		at = next
	}
	return text[:0]
}

// lastLine returns where the last line with content begins.
func lastLine(text []byte) int {
	at := len(text)
	for at > 0 {
		start := bytes.LastIndexByte(text[:at-1], '\n') + 1
		if line := text[start:at]; isContent(line) {
			return start
		}
		at = start
	}
	return 0
}
