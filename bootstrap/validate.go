package bootstrap

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// Validate applies the field rules that Envoy's API states about m, a message of that API, and reports every field that
// breaks one by its path in the file, such as static_resources.clusters[0].name. Messages inside an Any are not looked into.
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

// eachViolation walks what generated validation returns: lists of errors (AllErrors), each of a field, whose cause is
// again such a list or error where the field is a message.
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

// protoName turns the name of a Go field, perhaps with an index behind it, into that of its proto field.
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
