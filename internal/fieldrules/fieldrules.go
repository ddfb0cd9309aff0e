// Package fieldrules checks messages against the rules that Envoy's API gives its fields (protoc-gen-validate), as Envoy does when it reads a
// configuration.
//
// It reads the rules out of the descriptors. The code that protoc-gen-validate generates from them does the same, and is left out of the
// programs (the build tag disable_pgv): it is a fifth of their size, and the linker keeps all of it as soon as one message is validated. A test compares
// both. What a rule is, and what it says of a field that breaks it, is that of validate/validate.proto and of the templates for Go in
// protoc-gen-validate v1. Rules that Envoy's API has no use of (email, uuid, timestamp) are not there; a test shows that it has none.
//
// Its functions may be called concurrently.
package fieldrules

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/envoyproxy/protoc-gen-validate/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Violation is a field that breaks a rule.
type Violation struct {
	// Path leads from the message to the field, such as "static_resources.clusters[0].name" or "metadata[key]"; a oneof of which no field is set is
	// named by its own name.
	Path string
	// Reason says what is wrong, such as "value is required".
	Reason string
	// Set reports that the field, or one of the oneof, is set.
	Set bool
}

func (v Violation) Error() string { return v.Path + ": " + v.Reason }

// Check returns the fields of a message, and of the messages in it, that break a rule: in the order of their declaration, those of a oneof last.
// It does not look into an Any.
func Check(m proto.Message) []Violation { return check(m.ProtoReflect(), true) }

// CheckOwn is Check without the messages in the message.
func CheckOwn(m protoreflect.Message) []Violation { return check(m, false) }

func check(m protoreflect.Message, inside bool) []Violation {
	c := &checker{inside: inside}
	c.message(m, "")
	return c.found
}

// plan has the fields of a message that there is something to check in: those outside of a oneof first, then those of each oneof, then those
// with explicit presence.
type plan []field

type field struct {
	protoreflect.FieldDescriptor
	rules *validate.FieldRules // never nil
	// present reports that the rules are for a field that is set.
	present bool
	// required, unless nil, is in place of all others: one field of this oneof must be set.
	required protoreflect.OneofDescriptor
}

// plans has the plan of each message that was checked, by its descriptor.
var plans sync.Map

func planOf(of protoreflect.MessageDescriptor) plan {
	if p, ok := plans.Load(of); ok {
		return p.(plan)
	}
	p := newPlan(of)
	plans.Store(of, p)
	return p
}

func newPlan(of protoreflect.MessageDescriptor) (p plan) {
	options, _ := of.Options().(*descriptorpb.MessageOptions)
	if extension(options, validate.E_Disabled) || extension(options, validate.E_Ignored) {
		return nil
	}
	add := func(f protoreflect.FieldDescriptor, present bool) {
		rules, _ := proto.GetExtension(f.Options(), validate.E_Rules).(*validate.FieldRules)
		if rules == nil {
			rules = &validate.FieldRules{}
		}
		value := f
		if f.IsMap() {
			value = f.MapValue()
		}
		if value.Message() != nil || proto.Size(rules) > 0 {
			p = append(p, field{FieldDescriptor: f, rules: rules, present: present})
		}
	}
	for i := range of.Fields().Len() {
		if f := of.Fields().Get(i); f.ContainingOneof() == nil {
			add(f, false)
		}
	}
	var explicit []protoreflect.FieldDescriptor
	for i := range of.Oneofs().Len() {
		oneof := of.Oneofs().Get(i)
		for j := range oneof.Fields().Len() {
			if f := oneof.Fields().Get(j); oneof.IsSynthetic() {
				explicit = append(explicit, f)
			} else {
				add(f, true)
			}
		}
		oneofOptions, _ := oneof.Options().(*descriptorpb.OneofOptions)
		if extension(oneofOptions, validate.E_Required) {
			p = append(p, field{required: oneof})
		}
	}
	for _, f := range explicit {
		add(f, true)
	}
	return p
}

// extension returns the value of an option that is a bool.
func extension[O proto.Message](options O, of protoreflect.ExtensionType) bool {
	on, _ := proto.GetExtension(options, of).(bool)
	return on
}

type checker struct {
	inside bool
	found  []Violation
	// set is that of the field that is checked.
	set bool
}

func (c *checker) report(path, reason string) {
	c.found = append(c.found, Violation{path, reason, c.set})
}

func (c *checker) message(m protoreflect.Message, path string) {
	for _, f := range planOf(m.Descriptor()) {
		if f.required != nil {
			if m.WhichOneof(f.required) == nil {
				c.set = false
				c.report(join(path, f.required.Name()), "value is required")
			}
			continue
		}
		set := m.Has(f.FieldDescriptor)
		if f.present && !set {
			continue
		}
		c.set = set
		c.field(f, m.Get(f.FieldDescriptor), set, join(path, f.Name()))
	}
}

func join(path string, name protoreflect.Name) string {
	if path == "" {
		return string(name)
	}
	return path + "." + string(name)
}

func (c *checker) field(f field, v protoreflect.Value, set bool, path string) {
	switch {
	case f.IsMap():
		c.entries(f, v.Map(), path)
	case f.IsList():
		c.items(f, v.List(), path)
	default:
		c.value(f, f.rules, v, set, path)
	}
}

func (c *checker) entries(f field, entries protoreflect.Map, path string) {
	rules := cmp.Or(f.rules.GetMap(), &validate.MapRules{})
	if rules.GetIgnoreEmpty() && entries.Len() == 0 {
		return
	}
	c.size(rules.MinPairs, rules.MaxPairs, entries.Len(), "pair(s)", "pairs", path)
	if !c.inside && rules.GetKeys() == nil && rules.GetValues() == nil {
		return
	}
	keys := make([]protoreflect.MapKey, 0, entries.Len())
	for key := range entries.Range {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return compare(f.MapKey(), a.Value(), b.Value()) })
	for _, key := range keys {
		at := fmt.Sprintf("%s[%v]", path, key.Interface())
		if rules.GetKeys() != nil {
			c.value(f.MapKey(), rules.GetKeys(), key.Value(), true, at)
		}
		c.value(f.MapValue(), rules.GetValues(), entries.Get(key), true, at)
	}
}

func (c *checker) items(f field, items protoreflect.List, path string) {
	rules := cmp.Or(f.rules.GetRepeated(), &validate.RepeatedRules{})
	if rules.GetIgnoreEmpty() && items.Len() == 0 {
		return
	}
	c.size(rules.MinItems, rules.MaxItems, items.Len(), "item(s)", "items", path)
	if !rules.GetUnique() && rules.GetItems() == nil && (f.Message() == nil || !c.inside) {
		return
	}
	seen := make(map[any]bool)
	for i := range items.Len() {
		at, item := fmt.Sprintf("%s[%d]", path, i), items.Get(i)
		if rules.GetUnique() {
			key := item.Interface()
			if b, ok := key.([]byte); ok {
				key = string(b)
			}
			if seen[key] {
				c.report(at, "repeated value must contain unique items")
			}
			seen[key] = true
		}
		c.value(f, rules.GetItems(), item, true, at)
	}
}

// size checks the number of entries or items. At most is checked for both bounds, as its name is in the rules.
func (c *checker) size(atLeast, atMost *uint64, n int, exactly, between, path string) {
	switch size := uint64(n); {
	case atLeast != nil && *atLeast > 0 && atMost != nil && *atLeast == *atMost:
		if size != *atLeast {
			c.report(path, fmt.Sprintf("value must contain exactly %d %s", *atLeast, exactly))
		}
	case atLeast != nil && *atLeast > 0 && atMost != nil:
		if size < *atLeast || size > *atMost {
			c.report(path, fmt.Sprintf("value must contain between %d and %d %s, inclusive", *atLeast, *atMost, between))
		}
	case atLeast != nil && *atLeast > 0:
		if size < *atLeast {
			c.report(path, fmt.Sprintf("value must contain at least %d %s", *atLeast, exactly))
		}
	case atMost != nil:
		if size > *atMost {
			c.report(path, fmt.Sprintf("value must contain no more than %d %s", *atMost, exactly))
		}
	}
}

// value checks a field that is no list and no map, or one item or entry of these; f says of which kind it is.
func (c *checker) value(f protoreflect.FieldDescriptor, rules *validate.FieldRules, v protoreflect.Value, set bool, path string) {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		c.embedded(rules, v.Message(), set, path)
	case protoreflect.StringKind:
		if r := rules.GetString_(); r != nil {
			c.text(r, v.String(), path)
		}
	case protoreflect.BytesKind:
		if r := rules.GetBytes(); r != nil {
			c.bytes(r, v.Bytes(), path)
		}
	case protoreflect.BoolKind:
		if r := rules.GetBool(); r != nil && r.Const != nil && v.Bool() != r.GetConst() {
			c.report(path, fmt.Sprint("value must equal ", r.GetConst()))
		}
	case protoreflect.EnumKind:
		if r := rules.GetEnum(); r != nil {
			c.enum(r, f.Enum(), v.Enum(), path)
		}
	default:
		if r := typed(rules); r != nil {
			c.number(r, f, v, path)
		}
	}
}

// typed returns the rules for the kind of a field, nil for none.
func typed(rules *validate.FieldRules) protoreflect.Message {
	m := rules.ProtoReflect()
	of := m.WhichOneof(m.Descriptor().Oneofs().ByName("type"))
	if of == nil {
		return nil
	}
	return m.Get(of).Message()
}

// embedded checks a message in a field. Rules for an Any may be those of another message (ExtensionConfigSource.config_source in Envoy 1.40),
// which has to be there then and is not looked into.
func (c *checker) embedded(rules *validate.FieldRules, m protoreflect.Message, set bool, path string) {
	of := m.Descriptor()
	if typed(rules) != nil && isWrapper(of) {
		if set {
			value := of.Fields().ByName("value")
			c.value(value, rules, m.Get(value), true, path)
		} else if rules.GetMessage().GetRequired() {
			c.report(path, "value is required and must not be nil.")
		}
		return
	}
	required, into := rules.GetMessage().GetRequired(), !rules.GetMessage().GetSkip()
	if r := rules.GetDuration(); r != nil {
		required, into = r.GetRequired(), false
	}
	if r := rules.GetAny(); r != nil {
		required, into = r.GetRequired(), false
	}
	if !set {
		if required {
			c.report(path, "value is required")
		}
		return
	}
	if r := rules.GetDuration(); r != nil {
		c.duration(r, m, path)
	}
	if r := rules.GetAny(); r != nil {
		c.any(r, m, path)
	}
	if into && c.inside {
		c.message(m, path)
		c.set = true
	}
}

func isWrapper(of protoreflect.MessageDescriptor) bool {
	return of.ParentFile().Path() == "google/protobuf/wrappers.proto"
}

func (c *checker) any(r *validate.AnyRules, m protoreflect.Message, path string) {
	f := m.Descriptor().Fields().ByName("type_url")
	if f == nil {
		return
	}
	switch url := m.Get(f).String(); {
	case len(r.GetIn()) > 0 && !slices.Contains(r.GetIn(), url):
		c.report(path, fmt.Sprint("type URL must be in list ", r.GetIn()))
	case len(r.GetIn()) == 0 && slices.Contains(r.GetNotIn(), url):
		c.report(path, fmt.Sprint("type URL must not be in list ", r.GetNotIn()))
	}
}

func (c *checker) enum(r *validate.EnumRules, of protoreflect.EnumDescriptor, n protoreflect.EnumNumber, path string) {
	names := func(numbers []int32) string {
		var all []string
		for _, n := range numbers {
			all = append(all, enumName(of, protoreflect.EnumNumber(n)))
		}
		return "[" + strings.Join(all, " ") + "]"
	}
	if r.Const != nil && int32(n) != r.GetConst() {
		c.report(path, "value must equal "+enumName(of, protoreflect.EnumNumber(r.GetConst())))
	}
	switch {
	case len(r.GetIn()) > 0 && !slices.Contains(r.GetIn(), int32(n)):
		c.report(path, "value must be in list "+names(r.GetIn()))
	case len(r.GetIn()) == 0 && slices.Contains(r.GetNotIn(), int32(n)):
		c.report(path, "value must not be in list "+names(r.GetNotIn()))
	}
	if r.GetDefinedOnly() && of.Values().ByNumber(n) == nil {
		c.report(path, "value must be one of the defined enum values")
	}
}

func enumName(of protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	if v := of.Values().ByNumber(n); v != nil {
		return string(v.Name())
	}
	return ""
}

// number checks a number by rules of its type: FloatRules, Int32Rules and their likes have the same fields.
func (c *checker) number(r protoreflect.Message, f protoreflect.FieldDescriptor, v protoreflect.Value, path string) {
	rule := func(name protoreflect.Name) (protoreflect.Value, bool) {
		of := r.Descriptor().Fields().ByName(name)
		return r.Get(of), r.Has(of)
	}
	if ignore, _ := rule("ignore_empty"); ignore.Bool() && compare(f, v, f.Default()) == 0 {
		return
	}
	text := func(v protoreflect.Value) string { return fmt.Sprint(v.Interface()) }
	if want, is := rule("const"); is && compare(f, v, want) != 0 {
		c.report(path, "value must equal "+text(want))
	}
	if f.Kind() == protoreflect.DoubleKind && math.IsNaN(v.Float()) || f.Kind() == protoreflect.FloatKind && math.IsNaN(v.Float()) {
		rule = func(protoreflect.Name) (protoreflect.Value, bool) { return protoreflect.Value{}, false } // NaN satisfies every bound, as in the generated code
	}
	if reason := bounds(rule, func(bound protoreflect.Value) int { return compare(f, v, bound) },
		func(a, b protoreflect.Value) bool { return compare(f, a, b) > 0 }, text); reason != "" {
		c.report(path, reason)
	}
	member := func(name protoreflect.Name) (list string, in, is bool) {
		all, is := rule(name)
		if !is {
			return "", false, false
		}
		var texts []string
		for i := range all.List().Len() {
			texts = append(texts, text(all.List().Get(i)))
			in = in || compare(f, v, all.List().Get(i)) == 0
		}
		return "[" + strings.Join(texts, " ") + "]", in, true
	}
	if list, in, is := member("in"); is {
		if !in {
			c.report(path, "value must be in list "+list)
		}
	} else if list, in, is := member("not_in"); is && in {
		c.report(path, "value must not be in list "+list)
	}
}

// compare orders two values of the kind of a field.
func compare(f protoreflect.FieldDescriptor, a, b protoreflect.Value) int {
	switch f.Kind() {
	case protoreflect.StringKind:
		return strings.Compare(a.String(), b.String())
	case protoreflect.BoolKind:
		switch {
		case a.Bool() == b.Bool():
			return 0
		case a.Bool():
			return 1
		}
		return -1
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return cmp.Compare(a.Uint(), b.Uint())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return cmp.Compare(a.Float(), b.Float())
	}
	return cmp.Compare(a.Int(), b.Int())
}

// bounds checks lt, lte, gt and gte, and returns why a value breaks them. A range whose lower bound is above its upper one is that of the values that are not allowed.
func bounds[V any](rule func(protoreflect.Name) (V, bool), against func(V) int, above func(a, b V) bool, text func(V) string) (reason string) {
	upper, open := rule("lt")
	hasUpper := open
	if !hasUpper {
		upper, hasUpper = rule("lte")
	}
	lower, opens := rule("gt")
	hasLower := opens
	if !hasLower {
		lower, hasLower = rule("gte")
	}
	tooHigh := hasUpper && (against(upper) > 0 || open && against(upper) == 0)
	tooLow := hasLower && (against(lower) < 0 || opens && against(lower) == 0)
	switch {
	case hasUpper && hasLower && above(upper, lower):
		if tooHigh || tooLow {
			return "value must be inside range " + bracket(opens, "(", "[") + text(lower) + ", " + text(upper) + bracket(open, ")", "]")
		}
	case hasUpper && hasLower:
		if tooHigh && tooLow {
			return "value must be outside range " + bracket(open, "[", "(") + text(upper) + ", " + text(lower) + bracket(opens, "]", ")")
		}
	case tooHigh:
		return "value must be less than " + bracket(open, "", "or equal to ") + text(upper)
	case tooLow:
		return "value must be greater than " + bracket(opens, "", "or equal to ") + text(lower)
	}
	return ""
}

func bracket(open bool, is, isNot string) string {
	if open {
		return is
	}
	return isNot
}

// duration checks a Duration that is set.
func (c *checker) duration(r *validate.DurationRules, m protoreflect.Message, path string) {
	if len(r.GetIn())+len(r.GetNotIn()) == 0 && r.Lt == nil && r.Lte == nil && r.Gt == nil && r.Gte == nil && r.Const == nil {
		return
	}
	d, ok := durationOf(m)
	if !ok {
		c.report(path, "value is not a valid duration")
		return
	}
	rule := func(name protoreflect.Name) (time.Duration, bool) {
		of := r.ProtoReflect().Descriptor().Fields().ByName(name)
		if !r.ProtoReflect().Has(of) {
			return 0, false
		}
		bound, _ := durationOf(r.ProtoReflect().Get(of).Message())
		return bound, true
	}
	if want, is := rule("const"); is && d != want {
		c.report(path, "value must equal "+want.String())
	}
	if reason := bounds(rule, func(bound time.Duration) int { return cmp.Compare(d, bound) },
		func(a, b time.Duration) bool { return a > b }, time.Duration.String); reason != "" {
		c.report(path, reason)
	}
}
