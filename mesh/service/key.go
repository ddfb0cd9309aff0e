package service

import (
	"cmp"
	"strings"
)

// Key identifies a service. Services of one hostname in several namespaces are different services.
type Key struct {
	Hostname  Hostname
	Namespace string
}

// String returns a key as people write it: default/reviews.default.svc.cluster.local.
func (k Key) String() string { return k.Namespace + "/" + string(k.Hostname) }

// CompareKeys orders keys by hostname, then by namespace.
func CompareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(string(a.Hostname), string(b.Hostname)), strings.Compare(a.Namespace, b.Namespace))
}

// Key returns the key of the service.
func (s *Service) Key() Key { return Key{s.Hostname, s.Namespace} }
