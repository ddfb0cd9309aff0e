package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/nearest"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// Document is what was read from one document of a file.
type Document struct {
	// Key identifies the document. Its Name is "" if that is not known, because of an error or because
	// the document is of a kind that is not read.
	Key Key
	// Config is nil if the document has an error or is of a kind that is not read. Its ResourceVersion
	// is empty.
	Config   *Config
	Problems []Problem

	root *yamlproto.Node
}

// Line returns the line of a field as Problem has it, or of the nearest field above it.
func (d *Document) Line(field string) int {
	_, line := parsePath(field).locate(d.root)
	return line
}

// Read reads the documents of a file: those of the kinds that Schemas has are decoded and validated.
// Lists are expanded. The name is for messages, and a name that ends with ".json" makes the file be
// read as JSON. A file that is not YAML or JSON has no documents, and one problem is returned instead.
func Read(file string, data []byte) ([]Document, *Problem) {
	format := yamlproto.YAML11
	if strings.HasSuffix(strings.ToLower(file), ".json") {
		format = yamlproto.JSON
	}
	nodes, err := yamlproto.Read(data, format)
	if err != nil {
		p := Problem{File: file, Message: err.Error()}
		if at, ok := errors.AsType[*yamlproto.Error](err); ok {
			p.Line, p.Field, p.Message = at.Line, at.Field, at.Err.Error()
		}
		return nil, &p
	}
	r := &reader{file: file, data: data}
	for _, node := range nodes {
		r.read(node, node)
	}
	return r.documents, nil
}

// reader reads the documents of a file.
type reader struct {
	file      string
	data      []byte
	documents []Document
}

// document is a document that is being read.
type document struct {
	reader *reader
	root   *yamlproto.Node // the mapping of the document
	key    Key
	// prefix is the path of the document in the file's; "" or that of an item of a list.
	prefix   string
	problems []Problem
}

// add adds an error, or a warning with a code.
func (d *document) add(node *yamlproto.Node, line int, code Code, field, message string) {
	if node != nil && line == 0 {
		line = node.Line
	}
	d.problems = append(d.problems, Problem{Code: code, File: d.reader.file, Line: line, Key: d.key, Field: field, Severity: code.severity(), Message: message})
}

// addAt adds an error at a node.
func (d *document) addAt(node *yamlproto.Node, format string, args ...any) {
	field := strings.TrimPrefix(strings.TrimPrefix(node.Field(), d.prefix), ".")
	d.add(node, 0, "", field, fmt.Sprintf(format, args...))
}

// findings adds problems of a document whose tree has the given root; offset is added to its lines.
func (d *document) findings(findings []finding, root *yamlproto.Node, lines func(int) int) {
	for _, f := range findings {
		_, line := f.at.locate(root)
		d.add(nil, lines(line), f.code, f.at.String(), f.message)
	}
}

func sameLine(line int) int { return line }

// end adds the document to the results. The Config is dropped if there is an error.
func (d *document) end(c *Config) {
	if Invalid(d.problems) {
		c = nil
	}
	annotations := d.root.Get("metadata").Get("annotations")
	own, _ := annotations.Get(SuppressAnnotation).Text()
	istio, _ := annotations.Get(IstioSuppressAnnotation).Text()
	suppressed, _ := readSuppressions(own, istio)
	for i := range d.problems {
		d.problems[i].Suppressed = suppressed.has(d.problems[i].Code)
	}
	d.reader.documents = append(d.reader.documents, Document{Key: d.key, Config: c, Problems: d.problems, root: d.root})
}

// read reads a document, or the items of a list.
func (r *reader) read(root, top *yamlproto.Node) {
	d := &document{reader: r, root: root, prefix: root.Field()}
	if !root.IsMapping() {
		d.addAt(root, "a document must be a mapping that has apiVersion and kind")
		d.end(nil)
		return
	}
	kind, hasKind := root.Get("kind").Text()
	apiVersion, hasVersion := root.Get("apiVersion").Text()
	if !hasKind || kind == "" || !hasVersion || apiVersion == "" {
		missing := "kind"
		if hasKind && kind != "" {
			missing = "apiVersion"
		}
		d.add(root, 0, "", missing, "it is missing: every document needs an apiVersion and a kind")
		d.end(nil)
		return
	}
	if root == top && apiVersion == "v1" && kind == "List" {
		r.list(d, root)
		return
	}
	schema, knownVersion := schemaFor(apiVersion, kind)
	switch {
	case apiVersion == "v1" && kind == string(ConfigMap) && isMesh(root):
		d.mesh()
	case schema == nil:
		d.key = Key{Kind: Kind(groupKind(apiVersion, kind)), Namespace: metadataText(root, "namespace"), Name: metadataText(root, "name")}
		if problem := unknownKind(apiVersion, kind); problem != "" {
			d.add(nil, root.LineOf("kind"), "", "kind", problem)
		} else {
			d.add(root, 0, KindIgnored, "", ignoredMessage(apiVersion, kind))
		}
		d.key = Key{}
		d.end(nil)
	case !knownVersion:
		d.key.Kind = schema.Kind
		d.meta(schema)
		d.add(nil, root.LineOf("apiVersion"), "", "apiVersion", fmt.Sprintf("%s is not read: write %s", apiVersion, schema.APIVersion()))
		d.end(nil)
	default:
		d.end(d.decode(schema, apiVersion))
	}
}

// list reads the items of a list.
func (r *reader) list(d *document, root *yamlproto.Node) {
	for _, key := range root.Keys() {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "items"}, key) {
			d.add(nil, root.LineOf(key), "", key, "unknown field of a List")
		}
	}
	items := root.Get("items")
	if items == nil || !items.IsList() && !items.IsNull() {
		d.add(root, 0, "", "items", "a List must have a list of items")
	}
	if len(d.problems) > 0 {
		d.end(nil)
	}
	if items == nil {
		return
	}
	for _, item := range items.Elements() {
		r.read(item, root)
	}
}

func groupKind(apiVersion, kind string) string {
	if group, _, grouped := strings.Cut(apiVersion, "/"); grouped {
		return group + "/" + kind
	}
	return kind
}

func metadataText(root *yamlproto.Node, key string) string {
	text, _ := root.Get("metadata").Get(key).Text()
	return text
}

// decode decodes and validates a document of a known kind. It returns nil if that is not possible.
func (d *document) decode(schema *Schema, apiVersion string) *Config {
	d.key.Kind = schema.Kind
	meta := d.meta(schema)
	meta.APIVersion = apiVersion
	c := &Config{Meta: meta, Spec: schema.New()}
	if schema.IsIstio() {
		d.istio(c)
	} else {
		d.kubernetes(c)
	}
	if Invalid(d.problems) {
		return nil
	}
	canonicalHosts(c.Spec)
	d.findings(check(c), d.root, sameLine)
	return c
}

// istio decodes the spec of a document of Istio, and its status if that is read. A cluster writes a
// status and not a person: what is not known in it is ignored.
func (d *document) istio(c *Config) {
	for _, key := range d.root.Keys() {
		if known := []string{"apiVersion", "kind", "metadata", "spec", "status"}; !slices.Contains(known, key) {
			d.add(nil, d.root.LineOf(key), "", key, "unknown field"+nearest.Question("", key, known))
		}
	}
	if node := d.root.Get("spec"); node != nil && !node.IsNull() {
		if err := node.UnmarshalDurations(c.Spec.(proto.Message)); err != nil {
			d.unmarshalError(err, sameLine)
		}
	}
	node, status := d.root.Get("status"), newStatus(c.Kind)
	if node == nil || node.IsNull() || status == nil {
		return
	}
	if err := node.UnmarshalKnown(status); err != nil {
		d.unmarshalError(err, sameLine)
		return
	}
	c.Status = status
}

// unmarshalError adds an error of yamlproto.
func (d *document) unmarshalError(err error, lines func(int) int) {
	p := Problem{File: d.reader.file, Key: d.key, Message: err.Error()}
	if at, ok := errors.AsType[*yamlproto.Error](err); ok {
		p.Line, p.Message = lines(at.Line), at.Err.Error()
		p.Field = strings.TrimPrefix(strings.TrimPrefix(at.Field, d.prefix), ".")
	}
	d.problems = append(d.problems, p)
}

// otherMetadata are the fields of metadata that have no meaning here.
var otherMetadata = []string{"generateName", "selfLink", "uid", "resourceVersion", "deletionTimestamp",
	"deletionGracePeriodSeconds", "ownerReferences", "finalizers", "managedFields", "clusterName"}

// meta reads the metadata of a document, and sets its key.
func (d *document) meta(schema *Schema) Meta {
	meta := Meta{Key: Key{Kind: schema.Kind}, Origin: fmt.Sprintf("%s:%d", d.reader.file, d.root.Line)}
	if schema.Namespaced {
		meta.Namespace = DefaultNamespace
	}
	m := d.root.Get("metadata")
	if m == nil || !m.IsMapping() {
		d.add(d.root, 0, "", "metadata", "it is missing: a document must have a name")
		return meta
	}
	meta.Name, _ = m.Get("name").Text()
	if namespace, ok := m.Get("namespace").Text(); ok && schema.Namespaced && namespace != "" {
		meta.Namespace = namespace
	}
	if meta.Name != "" {
		d.key = meta.Key
	}
	for _, key := range m.Keys() {
		value := m.Get(key)
		switch {
		case slices.Contains(otherMetadata, key) || value.IsNull():
		case key == "labels":
			meta.Labels = d.texts(value)
		case key == "annotations":
			meta.Annotations = d.texts(value)
		case key == "creationTimestamp":
			meta.Created = d.time(value)
		case key == "generation": // a cluster writes it, and no person
			_ = json.Unmarshal(value.JSON(), &meta.Generation)
		case key == "name" || key == "namespace":
			if _, ok := value.Text(); !ok {
				d.addAt(value, "must be a string")
			}
		default:
			d.add(nil, m.LineOf(key), "", "metadata."+key, "unknown field"+nearest.Question("", key, []string{"name", "namespace", "labels", "annotations", "creationTimestamp"}))
		}
	}
	d.names(meta, m)
	return meta
}

// names checks the name and the namespace of a document.
func (d *document) names(meta Meta, m *yamlproto.Node) {
	switch {
	case meta.Name == "" && m.Get("generateName") != nil:
		d.add(nil, m.LineOf("generateName"), "", "metadata.name", "it is missing: names are not generated")
	case meta.Name == "":
		d.add(m, 0, "", "metadata.name", "it is missing")
	case !isDNSName(meta.Name):
		d.add(nil, m.LineOf("name"), "", "metadata.name", "must consist of lower case letters, digits, '-' and '.', at most 253")
	}
	if meta.Namespace != "" && !isDNSLabel(meta.Namespace) {
		d.add(nil, m.LineOf("namespace"), "", "metadata.namespace", "must consist of lower case letters, digits and '-', at most 63")
	}
}

// texts reads a mapping of strings.
func (d *document) texts(node *yamlproto.Node) map[string]string {
	if !node.IsMapping() {
		d.addAt(node, "must be a mapping of strings")
		return nil
	}
	texts := make(map[string]string)
	for _, key := range node.Keys() {
		value, ok := node.Get(key).Text()
		if !ok && !node.Get(key).IsNull() {
			d.addAt(node.Get(key), "must be a string: write numbers and booleans in quotes")
		}
		texts[key] = value
	}
	return texts
}

// time reads a time of RFC 3339.
func (d *document) time(node *yamlproto.Node) time.Time {
	text, _ := node.Text()
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		d.addAt(node, "must be a time as in 2006-01-02T15:04:05Z")
	}
	return t
}
