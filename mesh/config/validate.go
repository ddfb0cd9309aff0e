package config

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// Validate returns the problems of a document by itself: its errors, and warnings about what has no
// effect or is probably a mistake, including those of Warnings. It does not look at other documents.
// The problems have no file and no line. The Spec must have the type that Schemas has for the kind.
func Validate(c *Config) []Problem {
	var problems []Problem
	for _, f := range check(c) {
		problems = append(problems, Problem{Code: f.code, Key: c.Meta.Key, Field: f.at.String(), Severity: f.severity, Message: f.message})
	}
	return problems
}

// check returns the problems of a document.
func check(c *Config) []finding {
	k := &checker{config: c}
	schema := SchemaOf(c.Kind)
	if schema == nil {
		k.errorf(nil, "the kind %s is not read", c.Kind)
		return k.findings
	}
	if k.products(); k.failed() {
		return k.findings // some checks compare each element of a list with each of another one
	}
	k.annotations()
	k.suppressAnnotations()
	schema.validate(k)
	if !k.failed() {
		k.findings = append(k.findings, unsupported(c)...)
	}
	return k.findings
}

// finding is a problem in a document.
type finding struct {
	code     Code // "" for an error
	at       *path
	severity Severity
	message  string
}

// checker collects the problems of a document.
type checker struct {
	config   *Config
	findings []finding
}

func (k *checker) errorf(at *path, format string, args ...any) {
	k.findings = append(k.findings, finding{"", at, SeverityError, fmt.Sprintf(format, args...)})
}

func (k *checker) warnf(code Code, at *path, format string, args ...any) {
	k.findings = append(k.findings, finding{code, at, SeverityWarning, fmt.Sprintf(format, args...)})
}

func (k *checker) failed() bool {
	for _, f := range k.findings {
		if f.severity == SeverityError {
			return true
		}
	}
	return false
}

// DryRun is the annotation of an AuthorizationPolicy that is evaluated and not enforced.
const DryRun = "istio.io/dry-run"

// annotations checks the annotations that istiod rejects.
func (k *checker) annotations() {
	at := (&path{name: "metadata"}).field("annotations")
	for _, name := range []string{"internal.istio.io/always-reject", "internal.istio.io/parent-namespace", "internal.istio.io/parents"} {
		if _, found := k.config.Annotations[name]; found {
			k.errorf(at.field(name), "users must not set this annotation")
		}
	}
	if _, found := k.config.Annotations[DryRun]; found && SchemaOf(k.config.Kind).IsIstio() && k.config.Kind != AuthorizationPolicy {
		k.errorf(at.field(DryRun), "a %s cannot be tried without effect: remove the annotation", k.config.Kind.Short())
	}
}

// report adds an error if problem, which completes "the value …", is not empty.
func (k *checker) report(at *path, value, problem string) {
	if problem != "" {
		k.errorf(at, "%q %s", value, problem)
	}
}

// port checks the number of a port.
func (k *checker) port(at *path, number int64) {
	if number < 1 || number > 65535 {
		k.errorf(at, "must be a port from 1 to 65535, and is %d", number)
	}
}

// portName checks the name of a port.
func (k *checker) portName(at *path, name string) {
	if !isDNSLabel(name) {
		k.errorf(at, "%q is no name of a port: use lower case letters, digits and '-', at most 63", name)
	}
}

// duration checks a duration that must be at least a millisecond; nil is none.
func (k *checker) duration(at *path, d *durationpb.Duration) {
	if d != nil {
		k.durationAtLeast(at, d, time.Millisecond)
	}
}

// durationOrZero is duration, but accepts 0, which disables a timeout.
func (k *checker) durationOrZero(at *path, d *durationpb.Duration) {
	if d != nil && d.AsDuration() != 0 {
		k.durationAtLeast(at, d, time.Millisecond)
	}
}

func (k *checker) durationAtLeast(at *path, d *durationpb.Duration, least time.Duration) {
	switch value := d.AsDuration(); {
	case !d.IsValid():
		k.errorf(at, "is no valid duration")
	case value < least:
		k.errorf(at, "must be a duration of at least %s, and is %s", least, value)
	case value%time.Millisecond != 0:
		k.errorf(at, "must be a duration in whole milliseconds, and is %s", value)
	}
}

// percent checks a percentage from 0 to 100.
func (k *checker) percent(at *path, value float64) {
	if math.IsNaN(value) || value < 0 || value > 100 {
		k.errorf(at, "must be a percentage from 0 to 100, and is %v", value)
	}
}

// finePercent is percent, but rejects what is smaller than Envoy's smallest fraction.
func (k *checker) finePercent(at *path, value float64) {
	k.percent(at, value)
	if value > 0 && value < 0.0001 {
		k.errorf(at, "must be 0 or at least 0.0001, and is %v", value)
	}
}

// notNegative checks a number that must not be negative.
func (k *checker) notNegative(at *path, value int64) {
	if value < 0 {
		k.errorf(at, "must not be negative, and is %d", value)
	}
}

// labels checks labels of workloads.
func (k *checker) labels(at *path, labels map[string]string) {
	for _, key := range sortedKeys(labels) {
		switch {
		case !isLabelKey(key):
			k.errorf(at.field(key), "%q is no key of a label", key)
		case !isLabelValue(labels[key]):
			k.errorf(at.field(key), "%q is no value of a label", labels[key])
		}
	}
}

// selector checks the labels by which a document selects workloads.
func (k *checker) selector(at *path, labels map[string]string) {
	if len(labels) == 0 {
		k.warnf(SelectsAll, at, "selects by no label, and therefore applies to all workloads of the namespace")
	}
	for _, key := range sortedKeys(labels) {
		switch {
		case key == "":
			k.errorf(at, "the key of a label must not be empty")
		case strings.Contains(key, "*") || strings.Contains(labels[key], "*"):
			k.errorf(at.field(key), "labels are compared as they are: there are no wildcards")
		}
	}
}

// exportTo checks to which namespaces a document is exported. none accepts "~", to no namespace.
func (k *checker) exportTo(at *path, exportTo []string, none bool) {
	seen := make(map[string]bool)
	for i, namespace := range exportTo {
		own := namespace
		if own == "." {
			own = k.config.Namespace
		}
		switch {
		case seen[own]:
			k.errorf(at.at(i), "%q repeats a namespace of the list", namespace)
		case namespace == "~" && !none:
			k.errorf(at.at(i), `"~", to no namespace, is only for a ServiceEntry`)
		case (namespace == "*" || namespace == "~") && len(exportTo) > 1:
			k.errorf(at.at(i), "%q must be the only element", namespace)
		case namespace != "*" && namespace != "." && namespace != "~" && !isDNSLabel(namespace):
			k.errorf(at.at(i), `%q is no namespace, "." (its own) or "*" (all)`, namespace)
		}
		seen[own] = true
	}
}
