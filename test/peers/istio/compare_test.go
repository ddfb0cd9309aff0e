package istio

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// volatileRequest and volatileResponse are headers of which only the presence is compared, because the
// value is another one each time.
var (
	volatileRequest  = []string{"x-request-id", "x-tag", "traceparent", "tracestate", "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "sw8", "x-datadog-trace-id", "x-datadog-parent-id", "x-datadog-tags"}
	volatileResponse = []string{"date", "x-envoy-upstream-service-time", "set-cookie"}
)

func normalize(headers map[string]string, volatile []string) map[string]string {
	out := maps.Clone(headers)
	for _, name := range volatile {
		if value, ok := out[name]; ok {
			out[name] = "(some)"
			if name == "set-cookie" {
				// The value is a hash, the attributes are not.
				key, attributes, _ := strings.Cut(value, ";")
				key, _, _ = strings.Cut(key, "=")
				out[name] = key + "=(some);" + attributes
			}
		}
	}
	return out
}

// describe returns everything that is compared of the outcomes of a request, a line for each.
func describe(r *request, outcomes []*outcome) (lines []string) {
	statuses := make(map[string]int)
	for _, o := range outcomes {
		statuses[o.Status]++
	}
	if r.times > 1 {
		for _, status := range slices.Sorted(maps.Keys(statuses)) {
			lines = append(lines, fmt.Sprintf("%d times status %s", statuses[status], status))
		}
		if r.parallel || len(r.want.backends) > 1 || r.want.any {
			return lines
		}
	}
	o := outcomes[0]
	lines = append(lines, "status "+o.Status)
	lines = append(lines, o.Recorded...)
	if o.Certificate != "" {
		lines = append(lines, "certificate of "+o.Certificate)
	}
	for name, value := range normalize(o.Headers, volatileResponse) {
		if !r.want.any || name != "x-backend" {
			lines = append(lines, "response header "+name+": "+value)
		}
	}
	if !r.want.any {
		lines = append(lines, "body "+o.Body)
	}
	lines = append(lines, "attempts "+strconv.Itoa(len(o.Seen)))
	sorted := slices.Clone(o.Seen)
	if len(r.want.mirrored) > 0 {
		slices.SortFunc(sorted, func(a, b seen) int { return strings.Compare(a.Backend+a.Host, b.Backend+b.Host) })
	}
	for i, s := range sorted {
		at := fmt.Sprintf("attempt %d ", i+1)
		if !r.want.any {
			lines = append(lines, at+"backend "+s.Backend)
		}
		lines = append(lines, at+"method "+s.Method, at+"path "+s.Path, at+"host "+s.Host, at+"protocol "+s.Proto, at+"SNI "+s.SNI, at+"client "+s.Client)
		for name, value := range normalize(s.Headers, volatileRequest) {
			lines = append(lines, at+"header "+name+": "+value)
		}
	}
	slices.Sort(lines)
	return lines
}

// difference returns the lines that are in one only.
func difference(istiod, holdfast []string) (out []string) {
	for _, line := range istiod {
		if !slices.Contains(holdfast, line) {
			out = append(out, "istiod:        "+line)
		}
	}
	for _, line := range holdfast {
		if !slices.Contains(istiod, line) {
			out = append(out, "holdfast-mesh: "+line)
		}
	}
	return out
}

// unmet returns what of the expectations is not so.
func (r *request) unmet(outcomes []*outcome) (out []string) {
	statuses, backends := make(map[string]int), make(map[string]int)
	answered := 0
	for _, o := range outcomes {
		statuses[o.Status]++
		if len(o.Seen) > 0 {
			backends[o.Seen[len(o.Seen)-1].Backend]++
			answered++
		}
	}
	if !maps.Equal(statuses, r.want.statuses) {
		out = append(out, fmt.Sprintf("the status is %v, want %v (%v %q)", statuses, r.want.statuses, outcomes[0].err, outcomes[0].Body))
	}
	if len(r.want.mirrored) > 0 {
		return append(out, r.unmetMirrors(outcomes[0])...)
	}
	for name, percent := range r.want.backends {
		p := float64(percent) / 100
		n := float64(len(outcomes))
		// Six standard deviations: one in 500 million is wrong by chance.
		if tolerance := 6*math.Sqrt(n*p*(1-p)) + 0.5; math.Abs(float64(backends[name])-n*p) > tolerance {
			out = append(out, fmt.Sprintf("%d of %d requests came to %s, want %d%%; all: %v", backends[name], len(outcomes), name, percent, backends))
		}
	}
	switch {
	case r.parallel:
	case len(r.want.backends) == 0 && !r.want.any && !r.want.same && answered > 0:
		out = append(out, fmt.Sprintf("backends got it: %v, want none; write * if any will do", backends))
	case (r.want.any || r.want.same) && answered == 0:
		out = append(out, "no backend got it")
	case r.want.same && len(backends) > 1:
		out = append(out, fmt.Sprintf("several backends got it: %v", backends))
	}
	if r.want.attempts != 0 && len(outcomes[0].Seen) != r.want.attempts {
		out = append(out, fmt.Sprintf("%d attempts, want %d", len(outcomes[0].Seen), r.want.attempts))
	}
	out = append(out, outcomes[0].unrecorded...)
	for _, c := range r.want.checks {
		if problem := outcomes[0].check(c); problem != "" {
			out = append(out, problem)
		}
	}
	return out
}

func (r *request) unmetMirrors(o *outcome) (out []string) {
	want := append(slices.Sorted(maps.Keys(r.want.backends)), r.want.mirrored...)
	var got []string
	for _, s := range o.Seen {
		got = append(got, s.Backend)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		out = append(out, fmt.Sprintf("%v got it, want %v", got, want))
	}
	return out
}

// check returns what is not as an expectation says: path=, host=, method=, proto=, serversni=,
// client=, body=, certificate=, sees:HEADER= of the request, or has:HEADER= of the answer. An empty
// value stands for none.
func (o *outcome) check(text string) string {
	key, want, _ := strings.Cut(text, "=")
	var last seen
	if len(o.Seen) > 0 {
		last = o.Seen[len(o.Seen)-1]
	}
	var got string
	switch kind, name, _ := strings.Cut(key, ":"); kind {
	case "path":
		got = last.Path
	case "host":
		got = last.Host
	case "method":
		got = last.Method
	case "proto":
		got = last.Proto
	case "serversni":
		got = last.SNI
	case "client":
		got = last.Client
	case "body":
		got = o.Body
	case "certificate":
		got = o.Certificate
	case "sees":
		got = last.Headers[name]
	case "has":
		got = o.Headers[name]
	default:
		return fmt.Sprintf("%q is no expectation", text)
	}
	if got != want {
		return fmt.Sprintf("%s is %q, want %q", key, got, want)
	}
	return ""
}
