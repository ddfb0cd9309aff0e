package push

import (
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// namespaceLabel is the label that Kubernetes gives every namespace: its name.
const namespaceLabel = "kubernetes.io/metadata.name"

// namespaceIndex has what the Namespace documents say of namespaces.
type namespaceIndex struct {
	labels       map[string]labels.Set
	distribution map[string]service.Distribution
}

func indexNamespaces(list []*config.Config) *namespaceIndex {
	idx := &namespaceIndex{make(map[string]labels.Set), make(map[string]service.Distribution)}
	for _, c := range list {
		idx.labels[c.Name] = labels.Merge(c.Labels, labels.Set{namespaceLabel: c.Name})
		if d := service.DistributionOf(c.Annotations); d != service.DistributionUnset {
			idx.distribution[c.Name] = d
		}
	}
	return idx
}

// labelsOf returns the labels of a namespace. One without a document has its name as a label.
func (idx *namespaceIndex) labelsOf(namespace string) labels.Set {
	if set := idx.labels[namespace]; set != nil {
		return set
	}
	return labels.Set{namespaceLabel: namespace}
}

// selectorOf returns a selector of the mesh configuration; one that is not valid selects nothing.
func selectorOf(in *meshv1alpha1.LabelSelector) labels.Selector {
	if in == nil {
		return labels.Nothing()
	}
	out := &metav1.LabelSelector{MatchLabels: in.GetMatchLabels()}
	for _, e := range in.GetMatchExpressions() {
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: e.GetKey(), Operator: metav1.LabelSelectorOperator(e.GetOperator()), Values: e.GetValues(),
		})
	}
	selector, err := metav1.LabelSelectorAsSelector(out)
	if err != nil {
		return labels.Nothing() // validation has told
	}
	return selector
}

// Discovers reports whether the mesh configuration selects a namespace: what is in others does not count.
func (s *Snapshot) Discovers(namespace string) bool {
	if len(s.Mesh.GetDiscoverySelectors()) == 0 {
		return true
	}
	set := s.namespaces.labelsOf(namespace)
	return slices.ContainsFunc(s.Mesh.GetDiscoverySelectors(), func(in *meshv1alpha1.LabelSelector) bool { return selectorOf(in).Matches(set) })
}

// discovered is a Source without what is in namespaces that the mesh configuration does not select.
type discovered struct {
	Source
	of *Snapshot
}

// List returns the documents in namespaces that are discovered.
func (d discovered) List(kind config.Kind, namespace string) []*config.Config {
	return slices.DeleteFunc(slices.Clone(d.Source.List(kind, namespace)), func(c *config.Config) bool {
		return c.Namespace != "" && !d.of.Discovers(c.Namespace)
	})
}

// Get returns a document in a namespace that is discovered.
func (d discovered) Get(key config.Key) *config.Config {
	if key.Namespace != "" && !d.of.Discovers(key.Namespace) {
		return nil
	}
	return d.Source.Get(key)
}

// Services returns the services in namespaces that are discovered.
func (d discovered) Services() []*service.Service {
	return slices.DeleteFunc(slices.Clone(d.Source.Services()), func(s *service.Service) bool { return !d.of.Discovers(s.Namespace) })
}

// Distribution returns which endpoints of a service proxies prefer: as it says or, if it does not, as
// its namespace says.
func (s *Snapshot) Distribution(svc *service.Service) service.Distribution {
	if svc.Distribution != service.DistributionUnset {
		return svc.Distribution
	}
	return s.namespaces.distribution[svc.Namespace]
}

// entryVisibility returns how far a ServiceEntry of a namespace is visible to sidecars and gateways: the
// first policy of the mesh configuration whose rules all match decides. It only narrows exportTo.
func (s *Snapshot) entryVisibility(namespace string) meshv1alpha1.ServiceEntryVisibility_Visibility {
	visibility := s.Mesh.GetServiceEntryVisibility()
	if !visibility.GetApplyToSidecars() {
		return meshv1alpha1.ServiceEntryVisibility_PUBLIC
	}
	set := s.namespaces.labelsOf(namespace)
	for _, policy := range visibility.GetPolicies() {
		matches := func(rule *meshv1alpha1.ServiceEntryVisibility_MatchRule) bool {
			return selectorOf(rule.GetNamespaceSelector()).Matches(set)
		}
		if !slices.ContainsFunc(policy.GetMatchingRules(), func(rule *meshv1alpha1.ServiceEntryVisibility_MatchRule) bool { return !matches(rule) }) {
			return policy.GetVisibility()
		}
	}
	return visibility.GetDefaultVisibility()
}

// clusterLocal is whether the endpoints of hosts are used by proxies of their own cluster only.
type clusterLocal struct {
	host  service.Hostname
	local bool
}

// indexClusterLocal returns the serviceSettings of the mesh configuration, the most specific hosts first.
// As in Istio, Services of kube-system and that of the Kubernetes API are local, unless a setting says
// otherwise of one of them.
func indexClusterLocal(mesh *meshv1alpha1.MeshConfig, domain string) (out []clusterLocal) {
	for _, settings := range mesh.GetServiceSettings() {
		for _, host := range settings.GetHosts() {
			out = append(out, clusterLocal{service.Hostname(lower(host)), settings.GetSettings().GetClusterLocal()})
		}
	}
	for _, host := range []service.Hostname{service.Hostname("*.kube-system.svc." + domain), service.Hostname("kubernetes.default.svc." + domain)} {
		if !slices.ContainsFunc(out, func(own clusterLocal) bool { return !own.local && own.host.SubsetOf(host) }) {
			out = append(out, clusterLocal{host, true})
		}
	}
	slices.SortStableFunc(out, func(a, b clusterLocal) int { return service.MoreSpecific(a.host, b.host) })
	return out
}

// ClusterLocal reports whether proxies of other clusters than an endpoint's do not use it for a host.
func (s *Snapshot) ClusterLocal(host service.Hostname) bool {
	i := slices.IndexFunc(s.clusterLocal, func(own clusterLocal) bool { return host.SubsetOf(own.host) })
	return i >= 0 && s.clusterLocal[i].local
}
