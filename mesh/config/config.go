// Package config is the model of what users configure: documents of Istio's and Kubernetes' kinds,
// and a store of them with a local copy that calls handlers on changes. It follows Pilot's config
// model (Config, ConfigStore, ConfigStoreCache), with the kinds that Istio has today.
//
// Schemas has the kinds, Read reads the documents of a file and names the line and field of every
// problem, Validate checks one document and References what documents say about each other, Fields
// says which fields are supported (docs/mesh-api.md), and Memory is a store.
//
// It promises that a Config is never changed after it was stored, that a handler sees each change
// once and in order, that a document that is not valid never replaces a valid one (mesh.md M6), and
// that a document that sets a field without effect gets a warning (mesh.md M7). What Istio's own
// validation rejects is an error here too, except timeouts of 0s, which mean none. No problem contains
// the content of a Secret.
//
// It does not generate anything for a proxy, and does not apply the defaults of fields that are not
// set. All types may be used by several goroutines at once.
package config

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	meta "istio.io/api/meta/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Kind is a kind of document: its API group, a slash and its name; of the core group the name
// alone. The version is no part of it: the versions of a kind have the same fields.
type Kind string

// The kinds that are read. Schemas has their types.
const (
	ServiceEntry          Kind = "networking.istio.io/ServiceEntry"
	WorkloadEntry         Kind = "networking.istio.io/WorkloadEntry"
	VirtualService        Kind = "networking.istio.io/VirtualService"
	DestinationRule       Kind = "networking.istio.io/DestinationRule"
	Gateway               Kind = "networking.istio.io/Gateway"
	Sidecar               Kind = "networking.istio.io/Sidecar"
	PeerAuthentication    Kind = "security.istio.io/PeerAuthentication"
	RequestAuthentication Kind = "security.istio.io/RequestAuthentication"
	AuthorizationPolicy   Kind = "security.istio.io/AuthorizationPolicy"
	EnvoyFilter           Kind = "networking.istio.io/EnvoyFilter"
	Telemetry             Kind = "telemetry.istio.io/Telemetry"
	ProxyConfig           Kind = "networking.istio.io/ProxyConfig"
	WorkloadGroup         Kind = "networking.istio.io/WorkloadGroup"
	Service               Kind = "Service"
	EndpointSlice         Kind = "discovery.k8s.io/EndpointSlice"
	Pod                   Kind = "Pod"
	Namespace             Kind = "Namespace"
	Node                  Kind = "Node"
	Secret                Kind = "Secret"
	Ingress               Kind = "networking.k8s.io/Ingress"
	// ConfigMap has certificates of authorities for the kinds of the Gateway API, in the key ca.crt.
	ConfigMap Kind = "ConfigMap"
	// KubernetesGateway is the Gateway of the Gateway API; those below are of the same group.
	KubernetesGateway Kind = "gateway.networking.k8s.io/Gateway"
	GatewayClass      Kind = "gateway.networking.k8s.io/GatewayClass"
	HTTPRoute         Kind = "gateway.networking.k8s.io/HTTPRoute"
	GRPCRoute         Kind = "gateway.networking.k8s.io/GRPCRoute"
	TLSRoute          Kind = "gateway.networking.k8s.io/TLSRoute"
	TCPRoute          Kind = "gateway.networking.k8s.io/TCPRoute"
	ReferenceGrant    Kind = "gateway.networking.k8s.io/ReferenceGrant"
	BackendTLSPolicy  Kind = "gateway.networking.k8s.io/BackendTLSPolicy"
	// MeshConfig is the document "mesh" in the ConfigMap "istio" of the root namespace, as istiod
	// reads it.
	MeshConfig Kind = "mesh.istio.io/MeshConfig"
	// MeshNetworks is the document "meshNetworks" in the same ConfigMap.
	MeshNetworks Kind = "mesh.istio.io/MeshNetworks"
)

// ofConfigMap reports whether the documents of a kind are in a key of the ConfigMap of the mesh, and no
// documents of their own.
func (k Kind) ofConfigMap() bool { return k == MeshConfig || k == MeshNetworks }

// Short returns the name of a kind without its group.
func (k Kind) Short() string { return string(k[strings.IndexByte(string(k), '/')+1:]) }

// Label returns the name of a kind by which no other kind is called: Istio and the Gateway API both have a Gateway.
func (k Kind) Label() string {
	if k == KubernetesGateway {
		return "KubernetesGateway"
	}
	return k.Short()
}

// Key identifies a document. The namespace is empty for kinds without one.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// CompareKeys orders keys by kind, namespace and name.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// ValidKey reports whether a document may have a namespace and a name.
func ValidKey(k Key) bool { return isDNSName(k.Name) && (k.Namespace == "" || isDNSLabel(k.Namespace)) }

// String returns a key as people write it: VirtualService default/reviews.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind.Short() + " " + k.Name
	}
	return k.Kind.Short() + " " + k.Namespace + "/" + k.Name
}

// Path returns the path of a document as in the API of Kubernetes, with the kind in Istio's spelling.
func (k Key) Path() string {
	group, name, ok := strings.Cut(string(k.Kind), "/")
	if !ok {
		group, name = "core", string(k.Kind)
	}
	var kebab strings.Builder
	upper := func(i int) bool { return name[i] >= 'A' && name[i] <= 'Z' }
	for i := range len(name) {
		// A word begins after a small letter, or with the last of several capital letters: HTTPRoute is http-route.
		if i > 0 && upper(i) && (!upper(i-1) || i+1 < len(name) && !upper(i+1)) {
			kebab.WriteByte('-')
		}
		kebab.WriteByte(name[i])
	}
	return "/apis/" + group + "/v1/namespaces/" + k.Namespace + "/" + strings.ToLower(kebab.String()) + "/" + k.Name
}

// Meta is what every document has.
type Meta struct {
	Key
	// APIVersion is the version in which the document was written, such as
	// "networking.istio.io/v1".
	APIVersion          string
	Labels, Annotations map[string]string
	// ResourceVersion changes with each change of the document. The store assigns it; it has no
	// order.
	ResourceVersion string
	// Created is metadata.creationTimestamp, as the document says.
	Created time.Time
	// Order is the place of the document in the history of its store; zero if the store has no history, as a directory.
	Order StoreOrder
	// Generation counts the changes of the content, as Kubernetes does; 0 if the document does not say it. The status of a document
	// of the Gateway API names it.
	Generation int64
	// Origin says where the document was written, for messages: "file.yaml:12", "" if not known.
	Origin string
}

// Config is a document. It must not be changed after it was handed to a store.
type Config struct {
	Meta
	// Spec is a pointer to the type that Schemas has for the kind.
	Spec any
	// Status is what a controller wrote of a ServiceEntry (*networking.ServiceEntryStatus) or of a
	// WorkloadEntry (*meta.IstioStatus); nil for none, and of all other kinds. An object of Kubernetes
	// has its status in Spec.
	Status proto.Message
}

// newStatus returns an empty Status of a kind; nil for a kind whose status is not read.
func newStatus(kind Kind) proto.Message {
	switch kind {
	case ServiceEntry:
		return &networking.ServiceEntryStatus{}
	case WorkloadEntry:
		return &meta.IstioStatus{}
	}
	return nil
}

// StoreOrder is the place of a document in the history of its store, which the store knows and no author of documents chooses. Documents
// that were created in one transaction have one Revision.
type StoreOrder struct {
	// Revision is that of the store when the document was created.
	Revision int64
	// Rank orders documents that have a Revision only because they keep an age of before (etcd.Client.Ages); 0 for all others, which
	// come first.
	Rank int64
}

// Age decides between documents that ask for the same: the oldest has it (docs/mesh.md, "Whose is it"). What the store knows counts
// before what the document says.
type Age struct {
	StoreOrder
	Created time.Time
}

// Age returns the age of a document.
func (m *Meta) Age() Age { return Age{m.Order, m.Created} }

// Compare returns a negative number if a is older than b.
func (a Age) Compare(b Age) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Rank, b.Rank), a.Created.Compare(b.Created))
}

// Older orders documents that ask for the same: by age, then by name, then by namespace, as Pilot does.
func Older(a, b *Config) int {
	return cmp.Or(a.Age().Compare(b.Age()), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
}

// ByAge orders documents of any kinds as those do who decide between two that ask for the same: by age, and then by CompareNames.
func ByAge(a, b *Config) int { return cmp.Or(a.Age().Compare(b.Age()), CompareNames(a, b)) }

// CompareNames orders documents of one age: those of Istio by name and then by namespace, as Older; ServiceEntries, of which services of
// one name are made, and the kinds of the Gateway API, as that says, by namespace and then by name.
func CompareNames(a, b *Config) int {
	byNamespace := func(c *Config) bool {
		return c.Kind == ServiceEntry || strings.HasPrefix(string(c.Kind), "gateway.networking.k8s.io/")
	}
	name, namespace := cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace)
	switch x, y := byNamespace(a), byNamespace(b); {
	case x && y:
		return cmp.Or(namespace, name)
	case x:
		return 1
	case y:
		return -1
	}
	return cmp.Or(name, namespace)
}

// MaxTogether is how many documents are written in one transaction: half of what etcd takes by default (--max-txn-ops), so that documents
// of usual sizes have less than 1.5 MiB together (--max-request-bytes).
const MaxTogether = 64

// everywhere is the result of ExportedTo for all.
var everywhere = map[string]bool{"*": true}

// ExportedTo returns the namespaces to which a document of a namespace is exported: "." is its own, "*" all, and "~" none. An empty list
// is byDefault, or all. The result must not be changed.
func ExportedTo(exportTo, byDefault []string, namespace string) map[string]bool {
	if len(exportTo) == 0 {
		exportTo = byDefault
	}
	if len(exportTo) == 0 {
		return everywhere
	}
	set := make(map[string]bool, len(exportTo))
	for _, to := range exportTo {
		if to == "." {
			to = namespace
		}
		set[to] = true
	}
	return set
}

// Errors of a Store.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("it exists already")
	// ErrConflict is the error of a write whose resource version is not the stored one: somebody
	// else has changed the document since it was read.
	ErrConflict = errors.New("it was changed since it was read")
	// ErrUnanswered is the error of a write that the store has not answered: it may have been made.
	ErrUnanswered = errors.New("it is not known whether the change was made")
)

// Reader reads documents. List returns those of a kind, of one namespace or, for "", of all, in no
// order. What it returns must not be changed.
type Reader interface {
	Get(key Key) *Config // nil for none
	List(kind Kind, namespace string) []*Config
}

// Writer changes documents. Writes are optimistic: they carry the resource version that they change.
type Writer interface {
	// Create stores a new document and returns its resource version; ErrExists, or an *InvalidError.
	Create(ctx context.Context, c *Config) (version string, err error)
	// Update replaces the document that has c's resource version, and returns the new version;
	// ErrNotFound, ErrConflict, or an *InvalidError. It keeps the time of creation if c has none.
	Update(ctx context.Context, c *Config) (version string, err error)
	// Delete deletes the document that has a resource version; ErrNotFound, or ErrConflict. With an
	// empty version it deletes any.
	Delete(ctx context.Context, key Key, version string) error
}

// Store keeps documents. A read that follows a write may still return what was there before.
type Store interface {
	Reader
	Writer
}

// Event is a change of a document: Old is nil if it is new, New is nil if it is deleted.
type Event struct{ Old, New *Config }

// Key returns the key of the document that changed.
func (e Event) Key() Key {
	if e.New != nil {
		return e.New.Meta.Key
	}
	return e.Old.Meta.Key
}

// Cache is a full local copy of a store. Handlers are registered before Run. A change is in the
// copy before the handler is called, by one goroutine at a time. Initial documents count as
// changes.
type Cache interface {
	Reader
	RegisterHandler(kind Kind, handler func(Event))
	// Run keeps the copy current until ctx ends.
	Run(ctx context.Context) error
	// HasSynced reports whether the copy has been complete once, and the handlers were called for
	// all of it. Before that, what it lacks is unknown and not absent (mesh.md M8).
	HasSynced() bool
}

// Source is a Cache of documents that somebody else writes.
type Source interface {
	Cache
	// Problems returns what is wrong in the documents, and with the source.
	Problems() []Problem
	// Waiting returns why HasSynced is false, and what to do; nil if it is true.
	Waiting() error
}
