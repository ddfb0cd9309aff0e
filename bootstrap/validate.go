package bootstrap

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// Validate applies the field rules of Envoy's API to m, a message of that API, and reports every field that violates one by
// its path in the file, such as static_resources.clusters[0].name. It does not look into messages inside an Any.
func Validate(m interface{ ValidateAll() error }) error {
	err := m.ValidateAll()
	if err == nil {
		return nil
	}
	var broken []error
	eachViolation("", err, func(path, reason string) {
		broken = append(broken, fmt.Errorf("%s: %s", path, reason))
	})
	return fmt.Errorf("bootstrap: %w", errors.Join(broken...))
}

// eachViolation walks the errors of the generated validation: lists of errors (AllErrors), each for one field; the cause of
// an error is again such a list or error if the field is a message.
func eachViolation(path string, err error, report func(path, reason string)) {
	switch err := err.(type) {
	case interface{ AllErrors() []error }:
		for _, e := range err.AllErrors() {
			eachViolation(path, e, report)
		}
	case interface {
		Field() string
		Reason() string
		Cause() error
	}:
		path = strings.TrimPrefix(path+"."+protoName(err.Field()), ".")
		if err.Cause() != nil {
			eachViolation(path, err.Cause(), report)
			return
		}
		report(path, err.Reason())
	default:
		report(path, err.Error())
	}
}

// protoName converts the name of a Go field, with an optional index, to the name of its proto field.
func protoName(field string) string {
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
