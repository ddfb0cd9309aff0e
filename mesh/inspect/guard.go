package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	tcpauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"

	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/mesh/generate/authz"
)

// facts returns what policies know of the request, as it comes to a port.
func (x *explainer) facts(request routing.Request, http bool) *facts {
	f := &facts{
		request: routing.NewMatcher(request), http: http, principal: x.Client.Principal, hidden: x.hidden, port: x.Port,
		serverName: x.serverName(), claims: x.Client.Claims, source: x.source(),
	}
	f.remote = f.source
	for _, address := range x.Addresses {
		f.destination, _ = netip.ParseAddr(address)
	}
	return f
}

// guardHTTP follows a request through the filters that decide whether it may pass. denied says why it may not; "" if it
// may.
func (x *explainer) guardHTTP(m *managerv3.HttpConnectionManager, request routing.Request) (denied string) {
	f := x.facts(request, true)
	f.remote = x.remote(m)
	asks := "" // the rule because of which the next provider is asked
	for _, filter := range m.GetHttpFilters() {
		config, err := filter.GetTypedConfig().UnmarshalNew()
		if err != nil {
			continue
		}
		switch c := config.(type) {
		case *httprbacv3.RBAC:
			if asks, denied = x.rules(f, c.GetRules(), c.GetShadowRules(), c.GetShadowRulesStatPrefix()); denied != "" {
				return "403: " + denied
			}
		case *httpauthzv3.ExtAuthz:
			x.asks(asks, cmp.Or(c.GetHttpService().GetServerUri().GetCluster(), c.GetGrpcService().GetEnvoyGrpc().GetClusterName()))
		case *jwtv3.JwtAuthentication:
			if f.claims, denied = x.tokens(c); denied != "" {
				return denied
			}
		}
	}
	return ""
}

// guardTCP is guardHTTP for the filters of a connection.
func (x *explainer) guardTCP(filters []*listenerv3.Filter) (denied string) {
	f := x.facts(routing.Request{}, false)
	asks := ""
	for _, filter := range filters {
		switch c := unpack(filter).(type) {
		case *tcprbacv3.RBAC:
			if asks, denied = x.rules(f, c.GetRules(), c.GetShadowRules(), c.GetShadowRulesStatPrefix()); denied != "" {
				return "closed: " + denied
			}
		case *tcpauthzv3.ExtAuthz:
			x.asks(asks, c.GetGrpcService().GetEnvoyGrpc().GetClusterName())
		}
	}
	return ""
}

// asks explains that a provider is asked, if a rule says so.
func (x *explainer) asks(rule, cluster string) {
	if rule != "" {
		x.add("authorization", "CUSTOM", documentOfRule(rule), "the provider at %s is asked, and may deny the request", cluster)
	}
}

// rules explains a filter of rules. asks is the rule because of which the next filter asks a provider.
func (x *explainer) rules(f *facts, enforced, shadow *rbacv3.RBAC, prefix string) (asks, denied string) {
	taken := f.matching(shadow)
	switch {
	case shadow == nil:
	case strings.HasPrefix(prefix, authz.AskPrefix):
		if len(taken) > 0 {
			asks = taken[0]
		} else if open := f.undecided(shadow); len(open) > 0 {
			x.dependsOn(f, "CUSTOM", open[0])
		}
	case len(taken) > 0:
		x.add("authorization", "dry run", documentOfRule(taken[0]), "%s would take the request", ruleText(taken[0]))
	case shadow.GetAction() == rbacv3.RBAC_ALLOW:
		x.add("authorization", "dry run", "", "no rule of a policy that is tried would allow the request")
	}
	if enforced == nil {
		return asks, ""
	}
	taken = f.matching(enforced)
	switch enforced.GetAction() {
	case rbacv3.RBAC_DENY:
		if open := f.undecided(enforced); len(taken) == 0 && len(open) > 0 {
			x.dependsOn(f, "DENY", open[0])
			return asks, ""
		}
		if len(taken) == 0 {
			x.add("authorization", "DENY", "", "no rule takes the request of %s", x.Client)
			return asks, ""
		}
		x.add("authorization", "DENY", documentOfRule(taken[0]), "%s takes the request of %s", ruleText(taken[0]), x.Client)
		return asks, fmt.Sprintf("denied by %s of %s", ruleText(taken[0]), ruleOwner(taken[0]))
	case rbacv3.RBAC_ALLOW:
		if len(taken) > 0 {
			x.add("authorization", "ALLOW", documentOfRule(taken[0]), "%s takes the request of %s", ruleText(taken[0]), x.Client)
			return asks, ""
		}
		if open := f.undecided(enforced); len(open) > 0 {
			x.dependsOn(f, "ALLOW", open[0])
			return asks, ""
		}
		var owners []string
		for _, name := range slices.Sorted(maps.Keys(enforced.GetPolicies())) {
			owners = append(owners, ruleOwner(name))
		}
		of := few(slices.Compact(owners))
		x.add("authorization", "ALLOW", "", "no rule of %s takes the request of %s", of, x.Client)
		return asks, "denied because no rule allows it: those of " + cmp.Or(of, "no policy") + " do not take it"
	case rbacv3.RBAC_LOG:
		if len(taken) > 0 {
			x.add("authorization", "AUDIT", documentOfRule(taken[0]), "%s takes the request", ruleText(taken[0]))
		}
	}
	return asks, ""
}

// few joins names, of which it leaves out most if there are many.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d others", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// dependsOn explains that what a rule does depends on what the question does not say.
func (x *explainer) dependsOn(f *facts, action, rule string) {
	text := fmt.Sprintf("whether %s of %s takes the request depends on %s", ruleText(rule), ruleOwner(rule), strings.Join(f.lacks, ", and on "))
	x.add("authorization", action, documentOfRule(rule), "%s", text)
	x.depends = cmp.Or(x.depends, "not known: "+text)
}

// ruleText and ruleOwner say which rule a name means, and of which policy.
func ruleText(name string) string {
	if _, rule, ok := authz.ParsePolicyName(name); ok {
		return fmt.Sprintf("rules[%d]", rule)
	}
	return name
}

func ruleOwner(name string) string {
	if policy, _, ok := authz.ParsePolicyName(name); ok {
		return "AuthorizationPolicy " + policy.Namespace + "/" + policy.Name
	}
	return "an unknown policy"
}

// documentOfRule returns the path of the document of a rule, in the form of those of resources; "" if it is not known.
func documentOfRule(name string) string {
	if policy, _, ok := authz.ParsePolicyName(name); ok {
		return policy.Path()
	}
	return ""
}
