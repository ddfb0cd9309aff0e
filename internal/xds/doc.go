// Package xds has holdfast's vocabulary of xDS: type URLs and the order in which they are pushed,
// resources and updates, the reading of a resource's name from its bytes, content hashes, and TTLs.
//
// It promises that the body of a resource is never decoded and never re-encoded: a client gets the
// bytes that the control plane sent, also for types that did not exist when this was built. What
// must be known of a body (its name, the EDS name of a cluster, the clusters that a route leads to,
// the address of a listener) is read by a shallow scan of its wire form.
//
// It imports nothing else of holdfast, keeps no state and starts no goroutine. Everything in it may
// be called concurrently; a *Resource must not be changed after it was handed on.
package xds
