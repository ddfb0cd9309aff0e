package envoytypes

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Lookup records what it did not find, which an error of protojson or prototext has only within its text.
type Lookup struct {
	protoregistry.ExtensionTypeResolver
	// Missing is the URL or name of the last type that was not found, "" for none.
	Missing string
}

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

// Position extracts line and column, counted from 1, from an error of protojson or prototext, which has them only
// in its text: "proto: (line 3:5): text", or "(line 3:5)" at another place. They are 0 if there are none. text is
// the rest without the value of a text or bytes field, which may be a secret.
func Position(err error) (line, column int, text string) {
	// The protobuf library varies the type of space after "proto:".
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

// withoutValue removes the value at the end of an error text if it may be that of a text or bytes field.
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
		detail := text[at+len(form.begins):]
		end := strings.Index(detail, form.then)
		if end < 0 || form.begins == "invalid value" && strings.HasPrefix(detail, " for ") {
			return text
		}
		if value := detail[end+len(form.then):]; len(value) == 1 && strings.Contains("{}[]:,", value) {
			return text
		}
		return text[:at+len(form.begins)] + strings.TrimRight(detail[:end], ":") + " (the value is not shown)"
	}
	return text
}
