// Package envoytypes knows Envoy's messages, so that what is written in JSON, YAML or text
// can be read and shown: resources in files and REST, and dumps.
//
// It promises every v3 message of go-control-plane's envoy module, and what those refer to.
// Envoy's contrib extensions are a module of their own and are not here; nor is anything
// newer than the module. Nothing on the data path needs this package: a payload is opaque
// there.
//
// Most of these messages are not linked into the program: to register all of them took 5 ms
// of each start, 1.4 MB of memory and 9 MB of the program, and hardly any is ever met. They are known
// by their descriptors (descriptors.binpb), of which a package is decoded when one of its
// messages is first asked for: 100 µs and some 30 KB. Such a message is a
// dynamicpb.Message: it has all that a message has by reflection, and no methods of its own.
// What some package of the program imports is found as that. The tests import
// everything, and compare.
//
// All functions may be called concurrently.
package envoytypes
