package envoytypes

import (
	"fmt"
	"strings"
	"unicode"
)

// Violation is the error of a generated rule of Envoy's API about a field.
type Violation interface {
	error
	Field() string // the name of the Go field, with an index if it has one
	Reason() string
	Cause() error
}

// Violations returns the errors of a generated validation (ValidateAll) with the paths of their fields, below path. Such an
// error is a list (AllErrors) of errors, each for one field; the cause of an error is again such a list or error if the field
// is a message.
func Violations(path string, err error) (all []error) {
	switch err := err.(type) {
	case nil:
		return nil
	case interface{ AllErrors() []error }:
		for _, e := range err.AllErrors() {
			all = append(all, Violations(path, e)...)
		}
		return all
	case Violation:
		path = strings.TrimPrefix(path+"."+ProtoName(err.Field()), ".")
		if err.Cause() != nil {
			return Violations(path, err.Cause())
		}
		return []error{fmt.Errorf("%s: %s", path, err.Reason())}
	}
	return []error{fmt.Errorf("%s: %w", path, err)}
}

// ProtoName converts the name of a Go field, with an optional index, to the name of its proto field.
func ProtoName(field string) string {
	name, index, indexed := strings.Cut(field, "[")
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	if indexed {
		b.WriteString("[" + index)
	}
	return b.String()
}
