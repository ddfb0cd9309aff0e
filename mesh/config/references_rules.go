package config

import (
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
)

// maxComparisons bounds how many rules are compared, so that the check of many policies ends in seconds.
const maxComparisons = 5_000_000

// comparison finds rules that other rules make idle.
type comparison struct {
	*policies
	compared []*comparedPolicy // oldest first
	// terms are the numbers of sources, operations and conditions; equal ones have the same.
	terms map[string]int
	used  map[int]int // how many rules have a term
	// rules are those that may take all of a rule with a term, those of the oldest policy first.
	rules map[ruleKey][]*comparedRule
	left  int // how many comparisons are left
}

// comparedPolicy is a policy that may have an effect on rules of others.
type comparedPolicy struct {
	*Config
	spec      *security.AuthorizationPolicy
	scope     scope
	age       int // the oldest has 0
	rules     []*comparedRule
	allowsAll bool // one of its rules takes everything
}

// comparedRule is a rule with the numbers of its terms.
type comparedRule struct {
	policy         *comparedPolicy
	from, to, when []int // without doubles, in order
}

type ruleKey struct {
	action   security.AuthorizationPolicy_Action
	provider string
	term     int // anything for rules that take everything
}

// anything is the number of no term.
const anything = -1

// compare warns of rules that have no effect because of an older policy, or a policy that denies, and of rules that open
// what other policies close. It makes a number of comparisons at most.
func (p *policies) compare(comparisons int) {
	x := &comparison{policies: p, terms: make(map[string]int), used: make(map[int]int), rules: make(map[ruleKey][]*comparedRule), left: comparisons}
	for _, c := range p.authorization {
		spec := c.Spec.(*security.AuthorizationPolicy)
		if c.Annotations[DryRun] == "true" || hasTargets(spec) {
			continue
		}
		x.add(&comparedPolicy{Config: c, spec: spec, scope: p.scopeOf(c, spec.GetSelector().GetMatchLabels()), age: len(x.compared)})
	}
	for _, of := range x.compared {
		x.index(of)
	}
	rules := (&path{name: "spec"}).field("rules")
	for _, of := range x.compared {
		for i, rule := range of.rules {
			x.rule(rules.at(i), rule)
		}
		if x.left < 0 {
			p.warn(PoliciesNotCompared, of.Config, rules, "there are too many policies to compare: whether others make rules of this one and of younger ones idle, or the other way round, is not checked")
			return
		}
	}
}

// add adds a policy, which is younger than those before.
func (x *comparison) add(of *comparedPolicy) {
	x.compared = append(x.compared, of)
	for _, rule := range of.spec.GetRules() {
		r := &comparedRule{
			policy: of, from: numbers(x, "from", rule.GetFrom()), to: numbers(x, "to", rule.GetTo()), when: numbers(x, "when", rule.GetWhen()),
		}
		of.rules = append(of.rules, r)
		of.allowsAll = of.allowsAll || r.isEverything()
	}
}

// index adds the rules of a policy to those that may take all of others.
func (x *comparison) index(of *comparedPolicy) {
	for _, r := range of.rules {
		for _, term := range x.rarest(r) {
			key := ruleKey{of.spec.GetAction(), of.spec.GetProvider().GetName(), term}
			x.rules[key] = append(x.rules[key], r)
		}
	}
}

// rarest returns terms of which every rule that a rule takes has at least one: all its sources, all its operations or one
// condition, whichever few rules have.
func (x *comparison) rarest(r *comparedRule) []int {
	choices := [][]int{r.from, r.to}
	for i := range r.when {
		choices = append(choices, r.when[i:i+1])
	}
	best, least := []int{anything}, math.MaxInt
	for _, terms := range choices {
		n := 0
		for _, term := range terms {
			n += x.used[term]
		}
		if len(terms) > 0 && n < least {
			best, least = terms, n
		}
	}
	return best
}

// numbers returns the numbers of sources, operations or conditions.
func numbers[M proto.Message](x *comparison, kind string, terms []M) (out []int) {
	for _, term := range terms {
		text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(term)
		key := kind + string(text)
		n, known := x.terms[key]
		if !known {
			n = len(x.terms)
			x.terms[key] = n
		}
		out = append(out, n)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	for _, n := range out {
		x.used[n]++
	}
	return out
}

// rule warns of a rule that has no effect, and of one that opens what others close.
func (x *comparison) rule(at *path, r *comparedRule) {
	of := r.policy
	if other := x.covering(r, of.age, of.spec.GetAction(), of.spec.GetProvider().GetName()); other != nil {
		x.warn(RuleWithoutEffect, of.Config, at, "has no effect: %s takes all that it takes, with the same action", other.Meta.Key)
	}
	if of.spec.GetAction() != security.AuthorizationPolicy_ALLOW {
		return
	}
	if other := x.covering(r, len(x.compared), security.AuthorizationPolicy_DENY, ""); other != nil {
		x.warn(AllowsNothing, of.Config, at, "allows nothing: %s denies all that it takes", other.Meta.Key)
	}
	if r.isEverything() {
		x.opens(at, of)
	}
}

// opens warns of a rule that allows everything beside policies that allow some requests only.
func (x *comparison) opens(at *path, of *comparedPolicy) {
	for _, other := range x.compared {
		if x.left--; x.left < 0 {
			return
		}
		if other != of && other.spec.GetAction() == security.AuthorizationPolicy_ALLOW && !other.allowsAll && of.scope.overlaps(other.scope) {
			x.warn(OpensWhatIsClosed, of.Config, at, "allows every request, and so opens what %s closes", other.Meta.Key)
			return
		}
	}
}

// covering returns the oldest policy with an action that takes all requests of a rule, for all its workloads, of those with
// an age below one; nil for none.
func (x *comparison) covering(r *comparedRule, age int, action security.AuthorizationPolicy_Action, provider string) (found *comparedPolicy) {
	under := append([]int{anything}, r.when...)
	for _, terms := range [][]int{r.from, r.to} {
		if len(terms) > 0 {
			under = append(under, terms[0])
		}
	}
	for _, term := range under {
		for _, wide := range x.rules[ruleKey{action, provider, term}] {
			if wide.policy.age >= age {
				break
			}
			if x.left--; x.left < 0 {
				return nil
			}
			if wide.policy.scope.covers(r.policy.scope) && wide.takesAllOf(r) {
				found, age = wide.policy, wide.policy.age
				break
			}
		}
	}
	return found
}

func (r *comparedRule) isEverything() bool { return len(r.from)+len(r.to)+len(r.when) == 0 }

// takesAllOf reports whether a rule takes every request that another one takes. It compares sources, operations and
// conditions as a whole, so that false may be wrong, and true is not.
func (r *comparedRule) takesAllOf(narrow *comparedRule) bool {
	return among(r.from, narrow.from) && among(r.to, narrow.to) && (len(r.when) == 0 || contains(narrow.when, r.when))
}

// among reports whether all alternatives of a narrow list are in a wide one; an empty list stands for anything.
func among(wide, narrow []int) bool {
	return len(wide) == 0 || len(narrow) > 0 && contains(wide, narrow)
}

// contains reports whether a list has all of another one; both are in order.
func contains(all, some []int) bool {
	if len(some) > len(all) {
		return false
	}
	for _, n := range some {
		i, found := slices.BinarySearch(all, n)
		if !found {
			return false
		}
		all = all[i+1:]
	}
	return true
}
