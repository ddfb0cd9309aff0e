package gatewayapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/uuid"
)

// resource is a kind of objects that the cluster has.
type resource struct {
	schema.GroupKind
	plural     string
	namespaced bool
	versions   []string
	// schema has the defaults of the fields; nil for none.
	schema *apiextensionsv1.JSONSchemaProps
}

// builtin are the kinds of Kubernetes itself.
var builtin = []*resource{
	{GroupKind: schema.GroupKind{Kind: "Namespace"}, plural: "namespaces", versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Kind: "Service"}, plural: "services", namespaced: true, versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Kind: "ServiceAccount"}, plural: "serviceaccounts", namespaced: true, versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Kind: "Pod"}, plural: "pods", namespaced: true, versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Kind: "Secret"}, plural: "secrets", namespaced: true, versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, plural: "configmaps", namespaced: true, versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, plural: "deployments", namespaced: true, versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}, plural: "endpointslices", namespaced: true, versions: []string{"v1"}},
	{GroupKind: schema.GroupKind{Group: apiextensionsv1.GroupName, Kind: definitionKind}, plural: "customresourcedefinitions", versions: []string{"v1"}},
}

const definitionKind = "CustomResourceDefinition"

// objectKey names an object: its kind, namespace and name.
type objectKey struct {
	schema.GroupKind
	types.NamespacedName
}

// cluster is the API of a Kubernetes for the suite's client, as far as the suite uses it: objects are created, replaced, patched, listed
// and deleted, with generations and with the defaults of the Gateway API's own definitions. They have the status that holdfast-mesh
// says.
type cluster struct {
	resources []*resource
	// watch is called after each change, in order; deleted says that the object is gone. It must not call the cluster.
	watch func(obj *unstructured.Unstructured, deleted bool)
	// status returns what holdfast-mesh says of objects of the Gateway API, by kind, namespace and name.
	status func() (map[objectKey]map[string]any, error)
	// pods returns the pods, and logs what one of them has written since a time.
	pods func() []*unstructured.Unstructured
	logs func(pod types.NamespacedName, since time.Time) string

	mu      sync.Mutex
	objects map[objectKey]*unstructured.Unstructured
	version int
}

// newCluster returns a cluster that has the definitions of a channel of the Gateway API.
func newCluster(definitions string) (*cluster, error) {
	c := &cluster{resources: slices.Clone(builtin), objects: make(map[objectKey]*unstructured.Unstructured)}
	files, err := filepath.Glob(filepath.Join(definitions, "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if crd.Kind != definitionKind {
			continue
		}
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &obj.Object); err != nil {
			return nil, err
		}
		c.objects[keyOf(obj)] = obj
		r := &resource{
			GroupKind: schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}, plural: crd.Spec.Names.Plural,
			namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		}
		for _, v := range crd.Spec.Versions {
			r.versions = append(r.versions, v.Name)
			if v.Storage {
				r.schema = v.Schema.OpenAPIV3Schema
			}
		}
		c.resources = append(c.resources, r)
	}
	if len(c.resources) == len(builtin) {
		return nil, fmt.Errorf("there are no definitions in %s", definitions)
	}
	return c, nil
}

func keyOf(obj *unstructured.Unstructured) objectKey {
	return objectKey{obj.GroupVersionKind().GroupKind(), types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

// mapper returns which resources the kinds are.
func (c *cluster) mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, r := range c.resources {
		scope := meta.RESTScope(meta.RESTScopeRoot)
		if r.namespaced {
			scope = meta.RESTScopeNamespace
		}
		for _, version := range r.versions {
			of := schema.GroupVersion{Group: r.Group, Version: version}
			m.AddSpecific(of.WithKind(r.Kind), of.WithResource(r.plural), of.WithResource(strings.ToLower(r.Kind)), scope)
		}
	}
	return m
}

// request is what a path of the API means.
type request struct {
	*resource
	version   string
	namespace string
	name      string
	sub       string
}

func (c *cluster) parse(path string) (*request, error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	out := &request{}
	group := ""
	switch {
	case len(parts) > 2 && parts[0] == "api":
		out.version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, out.version, parts = parts[1], parts[2], parts[3:]
	default:
		return nil, fmt.Errorf("the cluster has no %s", path)
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		out.namespace, parts = parts[1], parts[2:]
	}
	i := slices.IndexFunc(c.resources, func(r *resource) bool {
		return r.Group == group && r.plural == parts[0] && slices.Contains(r.versions, out.version)
	})
	if i < 0 || len(parts) > 3 {
		return nil, fmt.Errorf("the cluster has no %s", path)
	}
	out.resource = c.resources[i]
	parts = append(parts, "", "")
	out.name, out.sub = parts[1], parts[2]
	return out, nil
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out, err := c.serve(r)
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := apierrors.APIStatus(apierrors.NewInternalError(err))
		_ = errors.As(err, &status)
		answer := status.Status()
		answer.Kind, answer.APIVersion = "Status", "v1"
		w.WriteHeader(int(answer.Code))
		out = answer
	}
	if text, ok := out.(string); ok {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, text)
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (c *cluster) serve(r *http.Request) (any, error) {
	req, err := c.parse(r.URL.Path)
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, r.URL.Path, err.Error(), 0, true)
	}
	if req.sub == "log" {
		since, _ := time.Parse(time.RFC3339, r.URL.Query().Get("sinceTime"))
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.logs(types.NamespacedName{Namespace: req.namespace, Name: req.name}, since), nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") == "" && req.name == "":
		return c.list(req, r.URL.Query().Get("labelSelector"))
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") == "":
		return c.get(req)
	case r.Method == http.MethodPost && req.name == "":
		return c.create(req, body)
	case r.Method == http.MethodPut && req.sub == "":
		return c.change(req, func(*unstructured.Unstructured) ([]byte, error) { return body, nil })
	case r.Method == http.MethodPatch && req.sub == "" && r.Header.Get("Content-Type") == string(types.MergePatchType):
		return c.change(req, func(old *unstructured.Unstructured) ([]byte, error) {
			text, err := old.MarshalJSON()
			if err != nil {
				return nil, err
			}
			return jsonpatch.MergePatch(text, body)
		})
	case r.Method == http.MethodDelete && req.name != "":
		return c.remove(req)
	}
	return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Group: req.Group, Resource: req.plural}, r.Method+" "+r.Header.Get("Content-Type"))
}

func (r *request) key() objectKey {
	return objectKey{r.GroupKind, types.NamespacedName{Namespace: r.namespace, Name: r.name}}
}

func (r *request) notFound() error {
	return apierrors.NewNotFound(schema.GroupResource{Group: r.Group, Resource: r.plural}, r.name)
}

// seen returns an object as it is in a version, with its status.
func (r *request) seen(obj *unstructured.Unstructured, status map[objectKey]map[string]any) *unstructured.Unstructured {
	out := obj.DeepCopy()
	out.SetGroupVersionKind(r.WithVersion(r.version))
	if of, ok := status[keyOf(obj)]; ok {
		out.Object["status"] = of
	}
	return out
}

// statusOf returns the status of the objects of a group; none, if holdfast-mesh says nothing of them.
func (c *cluster) statusOf(r *request) (map[objectKey]map[string]any, error) {
	if r.Group != gatewayGroup {
		return nil, nil
	}
	return c.status()
}

func (c *cluster) get(r *request) (any, error) {
	status, err := c.statusOf(r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	obj := c.objects[r.key()]
	if obj == nil {
		return nil, r.notFound()
	}
	return r.seen(obj, status), nil
}

func (c *cluster) list(r *request, selector string) (any, error) {
	selects, err := labels.Parse(selector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	status, err := c.statusOf(r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{}}
	list.SetGroupVersionKind(r.WithVersion(r.version))
	list.SetKind(r.Kind + "List")
	for _, obj := range c.of(r.GroupKind, r.namespace) {
		if selects.Matches(labels.Set(obj.GetLabels())) {
			list.Items = append(list.Items, *r.seen(obj, status))
		}
	}
	return list, nil
}

// of returns the objects of a kind in a namespace, or in all for "", by name.
func (c *cluster) of(kind schema.GroupKind, namespace string) (out []*unstructured.Unstructured) {
	if kind == podKind {
		return slices.DeleteFunc(c.pods(), func(pod *unstructured.Unstructured) bool { return namespace != "" && pod.GetNamespace() != namespace })
	}
	for key, obj := range c.objects {
		if key.GroupKind == kind && (namespace == "" || key.Namespace == namespace) {
			out = append(out, obj)
		}
	}
	slices.SortFunc(out, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return out
}

func (r *request) decode(body []byte) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(body, &obj.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj.SetGroupVersionKind(r.WithVersion(r.version))
	obj.SetNamespace(r.namespace)
	if r.schema != nil {
		setDefaults(obj.Object, r.schema)
	}
	if obj.Object["stringData"] != nil {
		return nil, apierrors.NewBadRequest("stringData is not supported")
	}
	return obj, nil
}

func (c *cluster) create(r *request, body []byte) (any, error) {
	obj, err := r.decode(body)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.name = obj.GetName()
	if c.objects[r.key()] != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Group: r.Group, Resource: r.plural}, r.name)
	}
	obj.SetUID(types.UID(uuid.NewString()))
	obj.SetCreationTimestamp(metav1.Now())
	obj.SetGeneration(1)
	return r.seen(c.put(obj), nil), nil
}

// change replaces an object by what a function makes of it. Its generation grows if anything but its metadata and its status changes.
func (c *cluster) change(r *request, to func(*unstructured.Unstructured) ([]byte, error)) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.objects[r.key()]
	if old == nil {
		return nil, r.notFound()
	}
	body, err := to(old)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj, err := r.decode(body)
	if err != nil {
		return nil, err
	}
	if v := obj.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: r.Group, Resource: r.plural}, r.name, errors.New("it has been changed meanwhile"))
	}
	obj.SetUID(old.GetUID())
	obj.SetCreationTimestamp(old.GetCreationTimestamp())
	obj.SetGeneration(old.GetGeneration())
	if content(obj) != content(old) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	return r.seen(c.put(obj), nil), nil
}

// content returns what counts for the generation of an object.
func content(obj *unstructured.Unstructured) string {
	out := maps.Clone(obj.Object)
	delete(out, "metadata")
	delete(out, "status")
	text, _ := json.Marshal(out) // it was read from JSON
	return string(text)
}

// put stores an object. c.mu is locked.
func (c *cluster) put(obj *unstructured.Unstructured) *unstructured.Unstructured {
	c.version++
	obj.SetResourceVersion(fmt.Sprint(c.version))
	if obj.GroupVersionKind().Group == gatewayGroup {
		delete(obj.Object, "status") // which is holdfast-mesh's
	}
	c.objects[keyOf(obj)] = obj
	c.watch(obj, false)
	return obj
}

// remove deletes an object; with a namespace, what is in it.
func (c *cluster) remove(r *request) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	obj := c.objects[r.key()]
	if obj == nil {
		return nil, r.notFound()
	}
	for key, in := range c.objects {
		if key == r.key() || r.Kind == "Namespace" && r.Group == "" && key.Namespace == r.name {
			delete(c.objects, key)
			c.watch(in, true)
		}
	}
	return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}, nil
}

// setDefaults gives an object the defaults of its schema, as the API server does.
func setDefaults(value any, s *apiextensionsv1.JSONSchemaProps) {
	switch v := value.(type) {
	case map[string]any:
		for name := range s.Properties {
			property := s.Properties[name]
			if _, ok := v[name]; !ok && property.Default != nil {
				var otherwise any
				if utiljson.Unmarshal(property.Default.Raw, &otherwise) == nil {
					v[name] = otherwise
				}
			}
			setDefaults(v[name], &property)
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			for name := range v {
				setDefaults(v[name], s.AdditionalProperties.Schema)
			}
		}
	case []any:
		if s.Items != nil && s.Items.Schema != nil {
			for i := range v {
				setDefaults(v[i], s.Items.Schema)
			}
		}
	}
}

// into decodes an object.
func into[T any](obj *unstructured.Unstructured) (*T, error) {
	text, err := obj.MarshalJSON()
	if err != nil {
		return nil, err
	}
	out := new(T)
	return out, json.Unmarshal(text, out)
}
