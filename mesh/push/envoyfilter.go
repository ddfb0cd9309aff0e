package push

import (
	"cmp"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/envoyfilter"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// filterIndex has the EnvoyFilters by namespace, in the order in which they are applied.
type filterIndex struct {
	root       string
	namespaces map[string][]*envoyFilter
}

// envoyFilter is an EnvoyFilter, whose patches were read once. It applies to the proxies that its labels select, or those
// of the Gateways of the Gateway API that it names.
type envoyFilter struct {
	*config.Config
	targeted[[]*envoyfilter.Patch]
	priority int32
}

// indexFilters indexes the EnvoyFilters of the mesh. Those that are the same documents as in an earlier
// index, which may be nil, are taken over.
func indexFilters(list []*config.Config, root string, before *filterIndex) *filterIndex {
	read := make(map[*config.Config]*envoyFilter)
	if before != nil {
		for _, filters := range before.namespaces {
			for _, f := range filters {
				read[f.Config] = f
			}
		}
	}
	idx := &filterIndex{root: root, namespaces: make(map[string][]*envoyFilter)}
	for _, c := range list {
		f := read[c]
		if spec, ok := c.Spec.(*networking.EnvoyFilter); ok && f == nil {
			f = &envoyFilter{c, targeted[[]*envoyfilter.Patch]{
				key: c.Meta.Key, selector: spec.GetWorkloadSelector().GetLabels(), targets: targetsOf(c.Namespace, nil, spec.GetTargetRefs()),
				value: envoyfilter.Compile(c.Meta.Key.String(), spec),
			}, spec.GetPriority()}
		}
		if f != nil {
			idx.namespaces[c.Namespace] = append(idx.namespaces[c.Namespace], f)
		}
	}
	for _, filters := range idx.namespaces {
		slices.SortFunc(filters, idx.compare)
	}
	return idx
}

// compare orders EnvoyFilters: by priority, with equal ones of the root namespace first, then by age.
func (idx *filterIndex) compare(a, b *envoyFilter) int {
	own := func(f *envoyFilter) int {
		if f.Namespace == idx.root {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(own(a), own(b)), config.Older(a.Config, b.Config))
}

// EnvoyFilters returns the patches of some kinds that are for a proxy, in their order: those of the root
// namespace and of its own; nil for none. It reads of the proxy only what an EnvoyFilter with such patches
// asks for.
func (s *Snapshot) EnvoyFilters(v *proxy.View, kinds ...envoyfilter.ApplyTo) *envoyfilter.Set {
	if len(s.filters.namespaces) == 0 {
		return nil
	}
	filters := s.filters.namespaces[s.filters.root]
	if own := v.Namespace(); own != s.filters.root && len(s.filters.namespaces[own]) > 0 {
		filters = append(slices.Clone(filters), s.filters.namespaces[own]...)
		slices.SortFunc(filters, s.filters.compare)
	}
	var patches []*envoyfilter.Patch
	for _, f := range filters {
		isOf := func(p *envoyfilter.Patch) bool { return slices.Contains(kinds, p.ApplyTo) }
		if !slices.ContainsFunc(f.value, isOf) || !f.applies(v, f.Namespace) {
			continue
		}
		for _, p := range f.value {
			if isOf(p) && p.Matches(v) {
				patches = append(patches, p)
			}
		}
	}
	return envoyfilter.NewSet(patches)
}
