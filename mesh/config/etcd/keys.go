package etcd

import (
	"strings"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// noNamespace stands in a key for the namespace of a kind without namespaces. It is not a name of a namespace.
const noNamespace = "_"

// resources has the kinds by the names of their resources.
var resources = func() map[string]config.Kind {
	byName := make(map[string]config.Kind)
	for i := range config.Schemas {
		byName[resource(&config.Schemas[i])] = config.Schemas[i].Kind
	}
	return byName
}()

// resource returns the name of a kind in keys, which is that of its CustomResourceDefinition in Kubernetes:
// "virtualservices.networking.istio.io"; of the core group, "services".
func resource(s *config.Schema) string {
	if s.Group == "" {
		return s.Plural
	}
	return s.Plural + "." + s.Group
}

// documents begins the keys of all documents.
func (c *Client) documents() string { return c.prefix + "/" }

// path returns the key of a document: /PREFIX/RESOURCE/NAMESPACE/NAME.
func (c *Client) path(key config.Key) string {
	namespace := key.Namespace
	if namespace == "" {
		namespace = noNamespace
	}
	return c.documents() + resource(config.SchemaOf(key.Kind)) + "/" + namespace + "/" + key.Name
}

// pathOf returns what begins the keys of the documents of a kind, in one namespace or, for "", in all.
func (c *Client) pathOf(kind config.Kind, namespace string) string {
	path := c.documents() + resource(config.SchemaOf(kind)) + "/"
	if namespace != "" {
		path += namespace + "/"
	}
	return path
}

// parse returns the document that a key is of; false if there can be none.
func (c *Client) parse(path string) (config.Key, bool) {
	parts := strings.Split(strings.TrimPrefix(path, c.documents()), "/")
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return config.Key{}, false
	}
	kind, ok := resources[parts[0]]
	key := config.Key{Kind: kind, Namespace: parts[1], Name: parts[2]}
	if !ok || config.SchemaOf(kind).Namespaced == (key.Namespace == noNamespace) {
		return config.Key{}, false
	}
	if key.Namespace == noNamespace {
		key.Namespace = ""
	}
	if !config.ValidKey(key) {
		return config.Key{}, false
	}
	return key, true
}
