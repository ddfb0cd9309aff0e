// Package xds is holdfast's vocabulary of xDS: type URLs and the order in which
// they are pushed, resources, the reading of a resource's name from its bytes,
// content hashes, and TTL.
//
// It promises that a resource's body is never decoded and never re-encoded: what
// a control plane sent is what a client gets, byte for byte, also for types that
// did not exist when this was built. What must be known of a body (its name, the
// EDS name of a cluster) is read by a shallow scan of its wire form.
//
// It imports nothing else of holdfast, keeps no state and starts no goroutine.
// Everything in it may be called concurrently; a *Resource is immutable once it
// was handed on.
package xds
