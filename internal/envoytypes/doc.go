// Package envoytypes makes Envoy's messages known to protobuf's global registry,
// so that what is written in JSON, YAML or text can be read and shown: resources
// in files and REST, and dumps. It has no other content.
//
// It promises every v3 configuration and extension message of go-control-plane's
// envoy module and the xDS types that those refer to, but for the access logger
// open_telemetry, which would bring in another module. Envoy's contrib extensions
// are a module of their own and are not here; nor is anything newer than the
// module. All of v3 is here, rather than a choice of it: leaving out a third of
// the packages saved 1.4 MB of the program and 1 MB of memory.
// Nothing on the data path needs this package: a payload is opaque there.
//
// Import it for its effect, from the package that reads or shows the messages.
package envoytypes
