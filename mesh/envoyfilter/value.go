package envoyfilter

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// Problem is something wrong in the value of a patch. Field is its path in the value, as it is written
// there; "" for the value as a whole.
type Problem struct{ Field, Message string }

// parseValue reads the value of a patch: a message of Envoy, with the JSON names of its fields or those of
// the proto. There is no message if there is a problem: an unknown field, a message that is not known, or
// a field that breaks a rule of Envoy's API. What a MERGE does not set it may find in what it is merged
// into.
func parseValue(to ApplyTo, op Operation, value *structpb.Struct) (proto.Message, []Problem) {
	m := newValue(to)
	if m == nil {
		return nil, []Problem{{Message: fmt.Sprintf("there is no value for %s", to)}}
	}
	if err := decode(value, m); err != nil {
		return nil, []Problem{problemOf(err)}
	}
	partial := op == opMerge || op == opMergeReplace || op == opRemove
	if problems := violations(m, partial); len(problems) > 0 {
		return nil, problems
	}
	if !partial {
		if err := broken(m); err != nil {
			return nil, []Problem{{Message: err.Error()}}
		}
	}
	return m, nil
}

// decode reads a message from the Struct of its JSON, as istiod does: with the units of Go in durations. The error is a *yamlproto.Error
// if it has a place.
func decode(value *structpb.Struct, m proto.Message) error {
	node, err := nodeOf(value)
	if err != nil {
		return err
	}
	return node.UnmarshalDurations(m)
}

// decodeStruct reads a message from the value of a TypedStruct, as Envoy does.
func decodeStruct(value *structpb.Struct, m proto.Message) error {
	node, err := nodeOf(value)
	if err != nil {
		return err
	}
	return node.Unmarshal(m)
}

func nodeOf(value *structpb.Struct) (*yamlproto.Node, error) {
	text, err := protojson.Marshal(value)
	if err != nil {
		return nil, err
	}
	nodes, err := yamlproto.Read(text, yamlproto.JSON)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, errors.New("it is empty")
	}
	return nodes[0], nil
}

func problemOf(err error) Problem {
	at, ok := errors.AsType[*yamlproto.Error](err)
	if !ok {
		return Problem{Message: err.Error()}
	}
	p := Problem{Field: at.Field, Message: at.Err.Error()}
	if strings.Contains(at.UnknownType, ".v2.") {
		p.Message += ": version 2 of Envoy's API is gone, write the message of version 3"
	}
	return p
}

// Check returns the problems of the value of a patch, and what has no effect in the patch: these with the
// field of the patch that they are about. It expects a patch whose other fields are valid.
func Check(in *networking.EnvoyFilter_EnvoyConfigObjectPatch) (warnings, problems []Problem) {
	warn := func(field, format string, args ...any) {
		warnings = append(warnings, Problem{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	to, op := in.GetApplyTo(), in.GetPatch().GetOperation()
	var value proto.Message
	if in.GetPatch().GetValue() != nil {
		if value, problems = parseValue(to, op, in.GetPatch().GetValue()); len(problems) > 0 {
			return nil, problems
		}
	}
	if !hasEffect(to, op) {
		warn("patch.operation", "%s has no effect on %s", op, to)
		return warnings, nil
	}
	if to == networking.EnvoyFilter_BOOTSTRAP && in.GetMatch().GetContext() != networking.EnvoyFilter_ANY {
		warn("match.context", "has no effect on BOOTSTRAP: match.proxy selects")
	}
	chain := in.GetMatch().GetListener().GetFilterChain()
	named := map[ApplyTo]bool{
		networking.EnvoyFilter_LISTENER_FILTER: in.GetMatch().GetListener().GetListenerFilter() != "",
		networking.EnvoyFilter_NETWORK_FILTER:  chain.GetFilter() != nil,
		networking.EnvoyFilter_HTTP_FILTER:     chain.GetFilter().GetSubFilter() != nil,
	}
	has, isFilter := named[to]
	if isFilter && !has && (op == opReplace || op == opRemove || op == opMerge && to == networking.EnvoyFilter_LISTENER_FILTER) {
		warn("match", "%s of %s has no effect without the name of a filter", op, to)
	}
	switch {
	case chain != nil && to == networking.EnvoyFilter_LISTENER:
		warn("match.listener.filterChain", "has no effect on LISTENER")
	case chain.GetFilter() != nil && to == networking.EnvoyFilter_FILTER_CHAIN:
		warn("match.listener.filterChain.filter", "has no effect on FILTER_CHAIN")
	}
	if isFilter && op == opMerge && value != nil {
		for field := range fieldsOf(value) {
			if field != "name" && field != "typed_config" {
				warn("patch.value", "only name and typed_config of a filter are merged, and not %s", field)
			}
		}
	}
	if op == opRemove && value != nil {
		warn("patch.value", "has no effect in a REMOVE")
	}
	return warnings, nil
}
