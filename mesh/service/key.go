package service

import (
	"cmp"
	"strings"
)

// Key identifies a service. Services of one hostname in several namespaces are different services.
type Key struct {
	Hostname  Hostname
	Namespace string
	// To are the namespaces to which ServiceEntries export the service, with commas; "" for all, or what the mesh configuration says. So two
	// of one host and namespace that are for different clients are two services.
	To string
}

// String returns a key as people write it: default/reviews.default.svc.cluster.local.
func (k Key) String() string {
	if k.To != "" {
		return k.Namespace + "/" + string(k.Hostname) + " for " + k.To
	}
	return k.Namespace + "/" + string(k.Hostname)
}

// CompareKeys orders keys by hostname, then by namespace, then by To.
func CompareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(string(a.Hostname), string(b.Hostname)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.To, b.To))
}

// Key returns the key of the service.
func (s *Service) Key() Key { return Key{s.Hostname, s.Namespace, s.To} }
