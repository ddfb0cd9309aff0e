package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// maxAuthor bounds the name of an Author, in bytes.
const maxAuthor = 256

// Author is who changed a document last, and when: the last element of metadata.managedFields in a document of
// Kubernetes.
type Author struct {
	// Name is that of a person or a program, "" if it is not known.
	Name string
	Time time.Time
}

// String returns "NAME at TIME" for messages.
func (a Author) String() string {
	name, at := a.Name, ""
	if name == "" {
		name = "somebody"
	}
	if !a.Time.IsZero() {
		at = " at " + a.Time.UTC().Format(time.RFC3339)
	}
	return name + at
}

// object is a document in JSON. Its fields are in the order in which people write them.
type object struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   objectMeta `json:"metadata"`
	fields     map[string]json.RawMessage
}

// objectMeta is the metadata of a document.
type objectMeta struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	CreationTimestamp *metav1.Time      `json:"creationTimestamp,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	ManagedFields     []managed         `json:"managedFields,omitempty"`
}

// managed is an Author in the form of Kubernetes (metav1.ManagedFieldsEntry).
type managed struct {
	Manager   string      `json:"manager,omitempty"`
	Operation string      `json:"operation"`
	Time      metav1.Time `json:"time"`
}

// Marshal returns a document as JSON, which Read reads as the same document. by is who writes it; the zero Author is left
// out. A MeshConfig and a MeshNetworks are ConfigMaps with one key.
func Marshal(c *Config, by Author) ([]byte, error) {
	fields, err := fieldsOf(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Meta.Key, err)
	}
	o := object{APIVersion: c.APIVersion, Kind: c.Kind.Short(), fields: fields, Metadata: objectMeta{
		Name: c.Name, Namespace: c.Namespace, Labels: c.Labels, Annotations: c.Annotations, Generation: c.Generation,
	}}
	if o.APIVersion == "" {
		o.APIVersion = SchemaOf(c.Kind).APIVersion()
	}
	if c.Kind.ofConfigMap() {
		o.APIVersion, o.Kind = "v1", string(ConfigMap)
	}
	if !c.Created.IsZero() {
		created := metav1.NewTime(c.Created)
		o.Metadata.CreationTimestamp = &created
	}
	if by != (Author{}) {
		o.Metadata.ManagedFields = []managed{{by.Name, "Update", metav1.NewTime(by.Time)}}
	}
	return o.marshal()
}

// MarshalMesh is Marshal for a MeshConfig and the MeshNetworks beside it, which are one ConfigMap.
func MarshalMesh(mesh, networks *Config) ([]byte, error) {
	text, err := Marshal(mesh, Author{})
	if err != nil {
		return nil, err
	}
	inner, err := protojson.Marshal(networks.Spec.(proto.Message))
	if err != nil {
		return nil, err
	}
	var whole map[string]json.RawMessage
	var data map[string]string
	if err := errors.Join(json.Unmarshal(text, &whole), json.Unmarshal(whole["data"], &data)); err != nil {
		return nil, err
	}
	data[networksKey] = string(inner)
	if whole["data"], err = json.Marshal(data); err != nil {
		return nil, err
	}
	return json.Marshal(whole)
}

// marshal writes the fields of every document first, and then the others by name.
func (o object) marshal() ([]byte, error) {
	head, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if len(o.fields) == 0 {
		return head, nil
	}
	tail, err := json.Marshal(o.fields)
	if err != nil {
		return nil, err
	}
	return append(append(head[:len(head)-1], ','), tail[1:]...), nil
}

// fieldsOf returns what a document has besides what every document has.
func fieldsOf(c *Config) (map[string]json.RawMessage, error) {
	fields := make(map[string]json.RawMessage)
	switch spec := c.Spec.(type) {
	case proto.Message:
		text, err := protojson.Marshal(spec)
		if err != nil {
			return nil, err
		}
		if c.Kind.ofConfigMap() {
			data, err := json.Marshal(map[string]string{configMapKeyOf(c.Kind): string(text)})
			fields["data"] = data
			return fields, err
		}
		fields["spec"] = text
	default:
		text, err := json.Marshal(spec)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &fields); err != nil {
			return nil, err
		}
		for _, known := range []string{"apiVersion", "kind", "metadata"} {
			delete(fields, known)
		}
		if string(fields["status"]) == "{}" {
			delete(fields, "status")
		}
	}
	if c.Status != nil {
		text, err := protojson.Marshal(c.Status)
		if err != nil {
			return nil, err
		}
		fields["status"] = text
	}
	return fields, nil
}

// configMapKeyOf returns the key of the ConfigMap of the mesh that has a kind.
func configMapKeyOf(kind Kind) string {
	if kind == MeshNetworks {
		return networksKey
	}
	return meshKey
}

// AuthorOf returns who wrote a document that Marshal has made; the zero Author if it does not say.
func AuthorOf(document []byte) Author {
	var o object
	if json.Unmarshal(document, &o) != nil || len(o.Metadata.ManagedFields) == 0 {
		return Author{}
	}
	last := o.Metadata.ManagedFields[len(o.Metadata.ManagedFields)-1]
	return Author{redact.Brief(last.Manager, maxAuthor), last.Time.Time} // anybody may have written it
}

// Same reports whether two documents say the same, with the same time of creation.
func Same(a, b *Config) bool {
	x, errX := Marshal(a, Author{})
	y, errY := Marshal(b, Author{})
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// WithoutSecret returns a document without the content of a Secret: its type stays.
func WithoutSecret(c *Config) *Config {
	secret, ok := c.Spec.(*corev1.Secret)
	if !ok {
		return c
	}
	shown := *c
	shown.Spec = &corev1.Secret{ObjectMeta: secret.ObjectMeta, TypeMeta: secret.TypeMeta, Type: secret.Type}
	return &shown
}
