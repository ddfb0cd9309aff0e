package bootstrap

import (
	"errors"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
)

// Part is a part of a bootstrap that a control plane gives. It is merged like an Overlay of the kind Merge.
type Part struct {
	// Name is where it comes from, for errors.
	Name string
	*bootstrapv3.Bootstrap
}

// NotCheckedError says that a bootstrap could not be checked, which says nothing about it.
type NotCheckedError struct{ Err error }

func (e *NotCheckedError) Error() string { return e.Err.Error() }
func (e *NotCheckedError) Unwrap() error { return e.Err }

// retries is how often parts that were left out are tried again with those that were taken: they may need them.
const retries = 3

// MergeParts returns a copy of b into which parts are merged in their order. Parts that change who Envoy is or how it reaches
// its agent, or with which check rejects the result, are left out, and no others; left says which, and why. check is called
// with groups of parts, so that k bad ones of n cost about k·log n calls. A NotCheckedError of it is returned.
func MergeParts(b *bootstrapv3.Bootstrap, parts []Part, check func(*bootstrapv3.Bootstrap) error) (merged *bootstrapv3.Bootstrap, taken []Part, left []error, err error) {
	m := &merging{base: b, parts: parts, check: check, taken: make([]bool, len(parts)), reasons: make([]error, len(parts)), merged: b}
	for range 1 + retries {
		waiting := m.waiting()
		if err := m.add(waiting); err != nil {
			return nil, nil, nil, err
		}
		if after := len(m.waiting()); after == 0 || after == len(waiting) {
			break
		}
	}
	for i, p := range parts {
		if m.taken[i] {
			taken = append(taken, p)
		} else {
			left = append(left, fmt.Errorf("%s is left out: %w", p.Name, m.reasons[i]))
		}
	}
	return m.merged, taken, left, nil
}

// merging is a MergeParts in progress.
type merging struct {
	base    *bootstrapv3.Bootstrap
	parts   []Part
	check   func(*bootstrapv3.Bootstrap) error
	taken   []bool
	reasons []error // why a part was not taken when it was tried last
	merged  *bootstrapv3.Bootstrap
}

// waiting returns the parts that are not taken.
func (m *merging) waiting() (out []int) {
	for i := range m.parts {
		if !m.taken[i] {
			out = append(out, i)
		}
	}
	return out
}

// add takes those parts of a group with which the result is right.
func (m *merging) add(group []int) error {
	if len(group) == 0 {
		return nil
	}
	merged, err := m.try(group)
	switch _, unknown := errors.AsType[*NotCheckedError](err); {
	case err == nil:
		m.merged = merged
		for _, i := range group {
			m.taken[i] = true
		}
		return nil
	case unknown:
		return err
	case len(group) == 1:
		m.reasons[group[0]] = err
		return nil
	}
	half := len(group) / 2
	if err := m.add(group[:half]); err != nil {
		return err
	}
	return m.add(group[half:])
}

// try merges the parts that are taken and those of a group.
func (m *merging) try(group []int) (*bootstrapv3.Bootstrap, error) {
	merged := proto.CloneOf(m.base)
	for i, p := range m.parts {
		if m.taken[i] || len(group) > 0 && i == group[0] {
			proto.Merge(merged, p.Bootstrap)
		}
		if len(group) > 0 && i == group[0] {
			group = group[1:]
		}
	}
	switch {
	case !proto.Equal(merged.GetNode(), m.base.GetNode()):
		return nil, errors.New("it changes the node, by which the agent and the control plane know this Envoy")
	case !proto.Equal(merged.GetDynamicResources(), m.base.GetDynamicResources()):
		return nil, errors.New("it changes dynamic_resources: Envoy gets its configuration from its agent")
	}
	return merged, m.check(merged)
}
