// Package yamlproto decodes protobuf messages from YAML or JSON files that people write.
//
// It promises that an error names the line in the file and the field, as spelled in the file, and does
// not contain the value of a text or bytes field, which may be a secret. Unknown fields, unknown types
// and duplicate keys of a mapping are errors. So are documents that are nested too deeply or that YAML
// aliases expand too much; they are detected before they cost much memory or time.
//
// It reports only the first error. It does not check the validation rules of messages, and does not
// limit the size of a file: the caller does.
//
// Read parses each document into a tree of Nodes. Unmarshal writes a Node as JSON with one token on
// each line and decodes that with protojson: the line in its error identifies the Node.
//
// Read and the methods of a Node, which do not modify it, may be called concurrently.
package yamlproto
