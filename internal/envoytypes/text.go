package envoytypes

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Lookup is a resolver for one decoding, which remembers what it did not find: an error of
// protojson or prototext names the type in the middle of a sentence.
type Lookup struct {
	protoregistry.ExtensionTypeResolver
	// Missing is the URL or name of the last type that was not found, "" for none.
	Missing string
}

// NewLookup returns a resolver of all that Resolver knows.
func NewLookup() *Lookup { return &Lookup{ExtensionTypeResolver: Resolver} }

// FindMessageByURL implements protoregistry.MessageTypeResolver.
func (l *Lookup) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	found, err := Resolver.FindMessageByURL(url)
	if err != nil {
		l.Missing = url
	}
	return found, err
}

// FindMessageByName implements protoregistry.MessageTypeResolver.
func (l *Lookup) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	found, err := Resolver.FindMessageByName(name)
	if err != nil {
		l.Missing = string(name)
	}
	return found, err
}

// Position takes line and column, from 1 on, out of an error of protojson or prototext, which
// have no other way to say them: "proto: (line 3:5): text", or "(line 3:5)" at another place in
// the text. They are 0 where there are none. The rest is for people: it says what is wrong with
// which field, without the value of a field of text or bytes, which may be a secret.
func Position(err error) (line, column int, text string) {
	// The space after "proto:" is sometimes another one, so that nobody relies on the text.
	text = strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	before, after, found := strings.Cut(text, "(line ")
	at, rest, closed := strings.Cut(after, ")")
	if n, _ := fmt.Sscanf(at, "%d:%d", &line, &column); !found || !closed || n != 2 {
		return 0, 0, withoutValue(text)
	}
	if before = strings.TrimSpace(before); before == "" {
		rest = strings.TrimPrefix(rest, ": ")
	}
	return line, column, withoutValue(before + rest)
}

// withoutValue takes the value of which an error speaks out of its text, where it may be of any
// field, or of one of text or bytes. It stands at the end.
func withoutValue(text string) string {
	for _, form := range []struct{ begins, then string }{
		{"unexpected token", " "},
		{"invalid value for string ", ": "},
		{"invalid value for bytes ", ": "},
		{"invalid scalar value", ": "},
		{"invalid google.protobuf.Value", ": "},
		{"invalid google.protobuf.Any", ": "},
		{"invalid value", " "},
	} {
		at := strings.Index(text, form.begins)
		if at < 0 {
			continue
		}
		said := text[at+len(form.begins):]
		end := strings.Index(said, form.then)
		if end < 0 || form.begins == "invalid value" && strings.HasPrefix(said, " for ") {
			return text
		}
		if value := said[end+len(form.then):]; len(value) == 1 && strings.Contains("{}[]:,", value) {
			return text
		}
		return text[:at+len(form.begins)] + strings.TrimRight(said[:end], ":") + " (the value is not shown)"
	}
	return text
}
