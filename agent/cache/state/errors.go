package state

import (
	"iter"
	"maps"
	"time"
)

// maxErrors bounds the names of one type whose errors are remembered.
const maxErrors = 1024

// Errors are the last errors of the sources about the names of one type; about the name "" those about no name in particular. The
// zero value has none.
type Errors struct {
	errs  map[string]error
	since time.Time
}

// Set records an error, unless there are too many.
func (e *Errors) Set(name string, err error) {
	if _, ok := e.errs[name]; !ok && name != "" && len(e.errs) >= maxErrors {
		return
	}
	if len(e.errs) == 0 {
		e.errs, e.since = make(map[string]error), time.Now()
	}
	e.errs[name] = err
}

// Delete forgets the error of a name.
func (e *Errors) Delete(name string) {
	if len(e.errs) > 0 {
		delete(e.errs, name)
	}
}

// DeleteWhere forgets the errors of the names for which a function returns true.
func (e *Errors) DeleteWhere(of func(name string) bool) {
	maps.DeleteFunc(e.errs, func(name string, _ error) bool { return of(name) })
}

// Of returns the error of a name; nil for none.
func (e *Errors) Of(name string) error { return e.errs[name] }

// All yields all errors by name, in no order. Since is since when there are some.
func (e *Errors) All() iter.Seq2[string, error] { return maps.All(e.errs) }
func (e *Errors) Since() time.Time              { return e.since }
