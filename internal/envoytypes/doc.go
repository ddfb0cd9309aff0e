// Package envoytypes knows Envoy's messages, so that JSON, YAML and text can be decoded and shown.
//
// It promises to know every v3 message of go-control-plane's envoy module, and the messages that those refer to,
// but not Envoy's contrib extensions, which are a separate module, or messages newer than the module.
//
// Most of these messages are not linked into the program: registering all of them costs 5 ms at each start,
// 1.4 MB of memory and 9 MB of program size, and most are never used. Instead, their descriptors are embedded
// (descriptors.binpb), and a package is decoded when one of its messages is first needed: 100 µs and about 30 KB.
// Such a message is a dynamicpb.Message: it supports reflection, but has no generated methods. A message of a
// package that the program imports has its generated type. The tests import all packages and compare.
//
// All functions may be called concurrently.
package envoytypes
