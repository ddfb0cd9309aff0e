package config

import (
	"fmt"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"
)

// comparedWarnings returns the warnings of a comparison of policies, each with rules that a function makes.
func comparedWarnings(t *testing.T, count, rules, comparisons int, rule func(policy, rule int) string) (texts []string) {
	t.Helper()
	var documents []string
	for i := range count {
		var all []string
		for j := range rules {
			all = append(all, rule(i, j))
		}
		documents = append(documents, fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p%d, namespace: a}\nspec: {action: DENY, rules: [%s]}",
			i, strings.Join(all, ", ")))
	}
	read, broken := Read("f", []byte(strings.Join(documents, "\n---\n")))
	if broken != nil {
		t.Fatal(broken)
	}
	p := &policies{references: &references{}, root: RootNamespace}
	for _, d := range read {
		if d.Config == nil || Invalid(d.Problems) {
			t.Fatal(d.Problems)
		}
		p.authorization = append(p.authorization, d.Config)
	}
	p.compare(comparisons)
	for _, problem := range p.problems {
		texts = append(texts, problem.String())
	}
	return texts
}

func TestRulesAreComparedWithThoseThatMayTakeTheirRequests(t *testing.T) {
	differentPaths := func(i, j int) string {
		return fmt.Sprintf("{from: [{source: {namespaces: [ns]}}], to: [{operation: {paths: [/p%d/%d]}}]}", i, j)
	}
	differentClients := func(i, j int) string {
		return fmt.Sprintf("{from: [{source: {namespaces: [n%dx%d]}}], to: [{operation: {paths: [/p]}}]}", i, j)
	}
	differentConditions := func(i, j int) string {
		return fmt.Sprintf("{to: [{operation: {paths: [/p]}}], when: [{key: source.namespace, values: [n%dx%d]}]}", i, j)
	}
	for name, rule := range map[string]func(int, int) string{"paths": differentPaths, "clients": differentClients, "conditions": differentConditions} {
		t.Run(name, func(t *testing.T) {
			if got := comparedWarnings(t, 100, 10, 2000, rule); len(got) > 0 { // of 499,500 pairs
				t.Errorf("the warnings are %q, want none", got)
			}
		})
	}
}

func TestRulesThatAreNotComparedAreNamed(t *testing.T) {
	similar := func(i, _ int) string {
		return fmt.Sprintf("{from: [{source: {namespaces: [ns%d]}}], to: [{operation: {paths: [/p%d]}}], when: [{key: source.ip, values: [10.0.0.%d]}]}", i%3, i/3%3, i/9%3)
	}
	got := comparedWarnings(t, 20, 1, 10, similar)
	if len(got) != 1 || !strings.Contains(got[0], "spec.rules: warning: there are too many policies to compare") || !strings.HasSuffix(got[0], "[HM0505]") {
		t.Errorf("the warnings are %q, want one that names what is not checked", got)
	}
}

func TestARuleIsFoundThatTakesAllOfAnother(t *testing.T) {
	source := func(name string) *security.Rule_From {
		return &security.Rule_From{Source: &security.Source{Namespaces: []string{name}}}
	}
	target := func(path string) *security.Rule_To {
		return &security.Rule_To{Operation: &security.Operation{Paths: []string{path}}}
	}
	when := func(value string) *security.Condition {
		return &security.Condition{Key: "source.ip", Values: []string{value}}
	}
	narrow := &security.Rule{
		From: []*security.Rule_From{source("b"), source("a")}, To: []*security.Rule_To{target("/a")}, When: []*security.Condition{when("10.0.0.1"), when("10.0.0.2")},
	}
	for name, tc := range map[string]struct {
		wide *security.Rule
		want bool
	}{
		"everything":          {&security.Rule{}, true},
		"the same":            {narrow, true},
		"a condition":         {&security.Rule{When: []*security.Condition{when("10.0.0.2")}}, true},
		"another condition":   {&security.Rule{When: []*security.Condition{when("10.0.0.2"), when("10.0.0.3")}}, false},
		"more clients":        {&security.Rule{From: []*security.Rule_From{source("a"), source("c"), source("b")}}, true},
		"fewer clients":       {&security.Rule{From: []*security.Rule_From{source("a")}}, false},
		"more operations":     {&security.Rule{To: []*security.Rule_To{target("/b"), target("/a")}}, true},
		"another operation":   {&security.Rule{To: []*security.Rule_To{target("/b")}}, false},
		"all of its own, and": {&security.Rule{From: narrow.GetFrom(), To: []*security.Rule_To{target("/c")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &policies{references: &references{}, root: RootNamespace}
			for i, rule := range []*security.Rule{tc.wide, narrow} {
				p.authorization = append(p.authorization, &Config{
					Meta: Meta{Key: Key{Kind: AuthorizationPolicy, Namespace: "a", Name: fmt.Sprint("p", i)}},
					Spec: &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_DENY, Rules: []*security.Rule{rule}},
				})
			}
			p.compare(100)
			if got := len(p.problems) == 1 && strings.Contains(p.problems[0].Message, "has no effect: AuthorizationPolicy a/p0"); got != tc.want {
				t.Errorf("problems %v, want one: %t", p.problems, tc.want)
			}
		})
	}
}
