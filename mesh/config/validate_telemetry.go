package config

import (
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// validateTelemetry checks a Telemetry.
func validateTelemetry(k *checker, spec *telemetry.Telemetry) {
	root := &path{name: "spec"}
	k.policyTarget(spec.GetSelector(), spec.GetTargetRef(), spec.GetTargetRefs())
	if len(spec.GetTracing()) > 1 {
		k.warnf(OnlyFirstUsed, root.field("tracing"), "a proxy has one tracer for each direction: later elements override earlier ones")
	}
	for i, tracing := range spec.GetTracing() {
		k.tracing(root.field("tracing").at(i), tracing)
	}
	for i, metrics := range spec.GetMetrics() {
		k.metrics(root.field("metrics").at(i), metrics)
	}
	for i, log := range spec.GetAccessLogging() {
		at := root.field("accessLogging").at(i)
		k.providerNames(at.field("providers"), log.GetProviders())
		if log.GetFilter() == nil {
			continue
		}
		k.report(at.fields("filter.expression"), log.GetFilter().GetExpression(), celProblem(log.GetFilter().GetExpression()))
		if len(log.GetProviders()) == 0 {
			k.warnf(NoEffect, at.field("filter"), "has no effect without providers, as with istiod: a filter is for the providers beside it")
		}
	}
}

// providerNames checks the names of providers.
func (k *checker) providerNames(at *path, providers []*telemetry.ProviderRef) {
	for i, p := range providers {
		if p.GetName() == "" {
			k.errorf(at.at(i).field("name"), "it is missing")
		}
	}
}

// tracing checks how requests are traced.
func (k *checker) tracing(at *path, t *telemetry.Tracing) {
	k.providerNames(at.field("providers"), t.GetProviders())
	if len(t.GetProviders()) > 1 {
		k.warnf(OnlyFirstUsed, at.field("providers"), "only the first one is used: a proxy has one tracer for each direction")
	}
	if t.GetRandomSamplingPercentage() != nil {
		k.percent(at.field("randomSamplingPercentage"), t.GetRandomSamplingPercentage().GetValue())
	}
	for _, name := range sortedKeys(t.GetCustomTags()) {
		at := at.field("customTags").field(name)
		if name == "" {
			k.errorf(at, "a tag needs a name")
		}
		switch tag := t.GetCustomTags()[name].GetType().(type) {
		case *telemetry.Tracing_CustomTag_Literal:
			k.notEmpty(at.fields("literal.value"), tag.Literal.GetValue())
		case *telemetry.Tracing_CustomTag_Environment:
			k.notEmpty(at.fields("environment.name"), tag.Environment.GetName())
		case *telemetry.Tracing_CustomTag_Header:
			k.tagHeader(at.fields("header.name"), tag.Header.GetName())
		case *telemetry.Tracing_CustomTag_Formatter:
			k.notEmpty(at.fields("formatter.value"), tag.Formatter.GetValue())
			k.report(at.fields("formatter.value"), tag.Formatter.GetValue(), formatProblem(tag.Formatter.GetValue()))
		default:
			k.errorf(at, "it does not say where its value comes from: want literal, environment, header or formatter")
		}
	}
}

// tagHeader checks the name of a header whose value becomes a tag.
func (k *checker) tagHeader(at *path, name string) {
	if name == "" {
		k.errorf(at, "it is missing")
		return
	}
	k.report(at, name, headerNameProblem(name))
}

// notEmpty checks that a text is there.
func (k *checker) notEmpty(at *path, text string) {
	if text == "" {
		k.errorf(at, "it is missing")
	}
}

// metrics checks what Istio's own validation checks of metrics, which are not made here.
func (k *checker) metrics(at *path, m *telemetry.Metrics) {
	k.providerNames(at.field("providers"), m.GetProviders())
	for i, override := range m.GetOverrides() {
		at := at.field("overrides").at(i)
		if custom, ok := override.GetMatch().GetMetricMatch().(*telemetry.MetricSelector_CustomMetric); ok {
			k.notEmpty(at.fields("match.customMetric"), custom.CustomMetric)
		}
		for _, name := range sortedKeys(override.GetTagOverrides()) {
			at, tag := at.field("tagOverrides").field(name), override.GetTagOverrides()[name]
			switch remove := tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE; {
			case name == "":
				k.errorf(at, "a tag needs a name")
			case remove && tag.GetValue() != "":
				k.errorf(at.field("value"), "must not be set with the operation REMOVE")
			case !remove && tag.GetValue() == "":
				k.errorf(at.field("value"), "it is missing")
			}
		}
	}
}
