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

// MergeParts returns a copy of b into which parts are merged in their order. A part that changes who Envoy is or how it
// reaches its agent, with which the result breaks a rule of Check, or that accept rejects, is left out alone; left says
// which, and why. accept, which may be nil, is called with all parts first, and part by part only after an error.
func MergeParts(b *bootstrapv3.Bootstrap, parts []Part, accept func(*bootstrapv3.Bootstrap) error) (merged *bootstrapv3.Bootstrap, taken []Part, left []error) {
	if accept == nil {
		accept = func(*bootstrapv3.Bootstrap) error { return nil }
	}
	merged = b
	for _, p := range parts {
		next, err := mergePart(merged, p)
		if err != nil {
			left = append(left, fmt.Errorf("%s is left out: %w", p.Name, err))
			continue
		}
		merged, taken = next, append(taken, p)
	}
	if len(taken) == 0 || accept(merged) == nil {
		return merged, taken, left
	}
	merged, parts, taken = b, taken, nil
	for _, p := range parts {
		next, err := mergePart(merged, p)
		if err == nil {
			err = accept(next)
		}
		if err != nil {
			left = append(left, fmt.Errorf("%s is left out: %w", p.Name, err))
			continue
		}
		merged, taken = next, append(taken, p)
	}
	return merged, taken, left
}

// mergePart returns a copy of b with one part merged.
func mergePart(b *bootstrapv3.Bootstrap, p Part) (*bootstrapv3.Bootstrap, error) {
	merged := proto.CloneOf(b)
	proto.Merge(merged, p.Bootstrap)
	switch {
	case merged.GetNode().GetId() != b.GetNode().GetId() || merged.GetNode().GetCluster() != b.GetNode().GetCluster():
		return nil, errors.New("it changes the id or the cluster of the node, by which the agent and the control plane know this Envoy")
	case !proto.Equal(merged.GetDynamicResources(), b.GetDynamicResources()):
		return nil, errors.New("it changes dynamic_resources: Envoy gets its configuration from its agent")
	}
	if _, err := Check(merged); err != nil {
		return nil, err
	}
	// The file is text: a message of a type that is not known cannot be written.
	if _, err := Encode(merged, JSON); err != nil {
		return nil, err
	}
	return merged, nil
}
