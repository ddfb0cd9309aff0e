package xds

import (
	"iter"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// xdstp is the scheme of structured names (xDS specification, TP1):
// xdstp://AUTHORITY/TYPE/ID?PARAM=VALUE&…, whose parameters are a set.
const xdstp = "xdstp://"

// CanonicalName returns a name with its context parameters in order, so that names with the same
// meaning are equal (protocol.md 8.7). A name of another form is opaque and is returned as it is.
func CanonicalName(name string) string {
	if !strings.HasPrefix(name, xdstp) {
		return name
	}
	path, query, ok := strings.Cut(name, "?")
	if !ok {
		return name
	}
	query, fragment, hasFragment := strings.Cut(query, "#")
	if strings.Contains(query, "&") {
		params := strings.Split(query, "&")
		slices.Sort(params)
		query = strings.Join(params, "&")
	}
	name = path + "?" + query
	if hasFragment {
		name += "#" + fragment
	}
	return name
}

// CanonicalNames returns a list with the canonical names. It does not change the list, and copies
// it only if a name differs.
func CanonicalNames(names []string) []string {
	if slices.ContainsFunc(names, func(name string) bool { return CanonicalName(name) != name }) {
		names = slices.Clone(names)
		for i, name := range names {
			names[i] = CanonicalName(name)
		}
	}
	return names
}

// IsCollection reports whether a name is a glob collection. Its path ends in "/*", and it means all
// names with the same directory and parameters.
func IsCollection(name string) bool {
	if !strings.HasPrefix(name, xdstp) {
		return false
	}
	path, _, _ := strings.Cut(name, "?")
	return strings.HasSuffix(path, "/*")
}

// CollectionOf returns the glob collection of which a name is a member: that with the same
// authority, type, directory and parameters. It is "" for names of another form, and for
// collections.
func CollectionOf(name string) string {
	if !strings.HasPrefix(name, xdstp) || IsCollection(name) {
		return ""
	}
	path, query, hasQuery := strings.Cut(name, "?")
	slash := strings.LastIndexByte(path, '/')
	if slash < len(xdstp) {
		return "" // no path: the slash is one of the scheme's
	}
	glob := path[:slash+1] + "*"
	if hasQuery {
		glob += "?" + query
	}
	return glob
}

// NameSet is the hash of a set of names. Equal sets have equal NameSets; different sets have
// different ones, except with a probability of 2^-64. The zero value is that of the empty set.
type NameSet struct {
	size int
	sum  uint64
}

// Add adds a name that is not in the set.
func (s *NameSet) Add(name string) {
	s.size++
	s.sum += xxhash.Sum64String(name)
}

// NamesOf returns the NameSet of names without duplicates.
func NamesOf(names iter.Seq[string]) (s NameSet) {
	for name := range names {
		s.Add(name)
	}
	return s
}

// smallSet is the maximum size of a set whose memory ResetNames reuses.
const smallSet = 256

// ResetNames empties a set of names. It leaves the memory of a large set to the garbage collector,
// because a map never shrinks, and large sets are rare.
func ResetNames[K comparable](set *map[K]struct{}) {
	if len(*set) > smallSet {
		*set = make(map[K]struct{})
		return
	}
	clear(*set)
}

// RoutesOf returns the name of the route configuration that a virtual host belongs to: what is before
// the last "/" of its name (xDS specification, "Virtual Host Discovery Service"); "" if there is none.
func RoutesOf(virtualHost string) string {
	return virtualHost[:max(strings.LastIndexByte(virtualHost, '/'), 0)]
}
