// Package fleet plays random histories of a mesh over several control planes: documents and endpoints change, each control
// plane learns of it late, or loses changes and reads everything again, or is restarted on what it had; proxies connect,
// are slow, lose their streams and come back at the same or another control plane, in both wire forms. Everything is the
// product's own code, in one process and in virtual time: registries, generation, push pipeline and sessions. Played are the
// store, its watches, and the proxies.
//
// These must hold:
//
//  1. When everything has come to rest, each proxy has what a new one gets from a new control plane that reads the documents
//     of the store once: the same names with the same bytes.
//  2. No response repeats clusters or listeners that the proxy has, also after it has come to another control plane.
//  3. It comes to rest: the number of messages is bounded.
//
// What a control plane takes away while it is late is not judged: it may not know yet what another one has given. That an
// etcd that is lost takes nothing away is shown in test/peers/etcd.
package fleet
