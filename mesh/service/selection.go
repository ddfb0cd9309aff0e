package service

import (
	"slices"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// selection has the endpoints of the workloads that something selects. The zero value is empty.
type selection struct {
	endpoints map[config.Key][]*Endpoint
	// order has the keys of the workloads by kind, namespace and name.
	order []config.Key
	count int // of all endpoints
}

// set replaces the endpoints of a workload.
func (s *selection) set(key config.Key, endpoints []*Endpoint) {
	i, found := slices.BinarySearchFunc(s.order, key, compareDocuments)
	if !found {
		s.order = slices.Insert(s.order, i, key)
	}
	if s.endpoints == nil {
		s.endpoints = map[config.Key][]*Endpoint{}
	}
	s.count += len(endpoints) - len(s.endpoints[key])
	s.endpoints[key] = endpoints
}

// remove removes a workload, and reports whether it was selected.
func (s *selection) remove(key config.Key) bool {
	i, found := slices.BinarySearchFunc(s.order, key, compareDocuments)
	if found {
		s.order = slices.Delete(s.order, i, i+1)
		s.count -= len(s.endpoints[key])
		delete(s.endpoints, key)
	}
	return found
}

// appendTo appends all endpoints to a list, in the order of the workloads' keys.
func (s *selection) appendTo(list []*Endpoint) []*Endpoint {
	list = slices.Grow(list, s.count)
	for _, key := range s.order {
		list = append(list, s.endpoints[key]...)
	}
	return list
}
