package envoyfilter

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
)

// run is one application of patches to a copy of a resource.
type run struct {
	context Context
	set     *Set
	// without has the patches that are left out.
	without map[*Patch]bool
	// changed says that a patch was applied.
	changed bool
	failed  []failed
}

// failed is a patch that could not be applied.
type failed struct {
	patch *Patch
	err   error
}

// of returns the patches of a kind that are to be applied.
func (r *run) of(to ApplyTo) (patches []*Patch) {
	for _, p := range r.set.by[to] {
		if !r.without[p] && p.isIn(r.context) {
			patches = append(patches, p)
		}
	}
	return patches
}

// fail records that a patch could not be applied.
func (r *run) fail(p *Patch, err error) { r.failed = append(r.failed, failed{p, err}) }

// patched returns a resource with patches applied: m itself if none applies. The candidates are those that
// may apply, in their order; f applies them to a copy, and returns it or nil if it is removed. A candidate
// that fails, or with which the copy breaks a rule that m does not break, is left out.
func patched[M proto.Message](s *Set, context Context, m M, candidates []*Patch, f func(M, *run) M) (M, []Failure) {
	if len(candidates) == 0 {
		return m, nil
	}
	// The rules are checked of what has changed only, and if our own resource keeps them.
	checks := func(out M) error {
		if nameOf(out) != nameOf(m) {
			return fmt.Errorf("it would give the resource the name %q", nameOf(out))
		}
		err := broken(out)
		if err != nil && broken(m) != nil {
			return nil
		}
		return err
	}
	without := make(map[*Patch]bool)
	var failures []Failure
	leave := func(p *Patch, err error) {
		without[p] = true
		failures = append(failures, Failure{Patch: p, Resource: nameOf(m), Reason: err.Error()})
	}
	for {
		r := &run{context: context, set: s, without: without}
		out, err := attempt(m, r, f, checks)
		if len(r.failed) == 0 {
			if err != nil {
				break // of one of them, or of several together
			}
			if !r.changed {
				return m, failures
			}
			return out, failures
		}
		for _, failed := range r.failed {
			if !without[failed.patch] {
				leave(failed.patch, failed.err)
			}
		}
	}
	// One by one: a patch stays if all is well with it and those before it.
	candidates = slices.DeleteFunc(candidates, func(p *Patch) bool { return without[p] })
	for _, p := range candidates {
		without[p] = true
	}
	out := m
	for _, p := range candidates {
		delete(without, p)
		r := &run{context: context, set: s, without: without}
		next, err := attempt(m, r, f, checks)
		if err != nil {
			leave(p, err)
		} else if r.changed {
			out = next
		}
	}
	return out, failures
}

// attempt applies the patches of a run to a copy of m. The error is that of a patch, or of the result.
func attempt[M proto.Message](m M, r *run, f func(M, *run) M, checks func(M) error) (out M, err error) {
	defer func() {
		if v := recover(); v != nil { // a message that reflection cannot handle
			err = fmt.Errorf("it cannot be applied: %v", v)
		}
	}()
	out = f(proto.Clone(m).(M), r)
	if len(r.failed) > 0 {
		return out, r.failed[0].err
	}
	if !r.changed || !out.ProtoReflect().IsValid() {
		return out, nil
	}
	return out, checks(out)
}

// nameOf returns the name of a resource.
func nameOf(m proto.Message) string {
	if named, ok := m.(interface{ GetName() string }); ok {
		return named.GetName()
	}
	return string(m.ProtoReflect().Descriptor().Name())
}

// insert inserts the value of a patch into a list. With named, that is before or after the first element
// that the patch is for, and nothing is inserted without one; without, it is at the beginning or the end.
func insert[E proto.Message](list []E, p *Patch, named bool, matches func(E) bool) (out []E, inserted bool) {
	value := func() E { return proto.Clone(p.value).(E) }
	at := 0
	switch p.operation {
	case opAdd:
		return append(list, value()), true
	case opFirst:
	case opBefore, opAfter:
		if named {
			if at = slices.IndexFunc(list, matches); at < 0 {
				return list, false
			}
		} else if p.operation == opAfter {
			at = len(list) - 1
		}
		if p.operation == opAfter {
			at++
		}
	default:
		return list, false
	}
	return slices.Insert(list, at, value()), true
}

// edit is insert, or REMOVE of all elements that the patch is for, or REPLACE of the first. The last two
// have no effect unless the patch names one.
func edit[E proto.Message](list []E, p *Patch, named bool, matches func(E) bool) (out []E, changed bool) {
	switch {
	case p.operation == opRemove && named:
		before := len(list)
		list = slices.DeleteFunc(list, matches)
		return list, len(list) != before
	case p.operation == opReplace && named:
		if at := slices.IndexFunc(list, matches); at >= 0 {
			list[at] = proto.Clone(p.value).(E)
			return list, true
		}
		return list, false
	}
	return insert(list, p, named, matches)
}
