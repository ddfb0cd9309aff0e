// Package yamlproto reads protobuf messages from files that people write, in YAML or JSON.
//
// It promises that an error names the line in the file and the field, as the file spells
// it, and that it shows no value of a field of text or bytes, which may be a secret. Unknown
// fields, unknown types and keys that a mapping has twice are errors. So are documents that
// are nested too deeply, and those that aliases of YAML would make too large: they are
// noticed before they cost much memory or time.
//
// It reports only the first thing that is wrong. It does not check the rules that a message
// has for its values, and it bounds no file: the caller does.
//
// Read makes a tree of Nodes of each document. Unmarshal writes a Node as JSON with one
// token on each line, and protojson reads that: the line in its error tells which Node is
// wrong.
//
// Read may be called concurrently, and so may the methods of a Node: none of them changes it.
package yamlproto
