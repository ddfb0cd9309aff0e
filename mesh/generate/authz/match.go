package authz

import (
	"regexp"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Where the filter of tokens puts the claims of a token that it has accepted.
const (
	TokenFilter  = "envoy.filters.http.jwt_authn"
	TokenPayload = "payload"
)

// text matches a value of a policy: "*" stands for anything but nothing, and "*" at the beginning or at the end for
// anything there.
func text(value string) *matcherv3.StringMatcher { return textAfter("", value) }

// textAfter is text for values that have a prefix which policies leave out.
func textAfter(before, value string) *matcherv3.StringMatcher {
	after, wildBegin := strings.CutPrefix(value, "*")
	begin, wildEnd := strings.CutSuffix(value, "*")
	switch {
	case value == "*":
		return expression(".+")
	case wildBegin && before == "":
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: after}}
	case wildBegin:
		return expression(regexp.QuoteMeta(before) + ".*" + regexp.QuoteMeta(after))
	case wildEnd:
		return prefix(before + begin)
	}
	return exact(before + value)
}

func exact(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}

func prefix(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: value}}
}

func expression(regex string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: regex}}}
}

// headerMatch matches a header; "*" asks that it is there.
func headerMatch(name, value string, ignoreCase bool) *routev3.HeaderMatcher {
	if value == "*" {
		return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
	}
	m := text(value)
	m.IgnoreCase = ignoreCase
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
}

func metadataMatch(filter string, path []string, value *matcherv3.ValueMatcher) *matcherv3.MetadataMatcher {
	m := &matcherv3.MetadataMatcher{Filter: filter, Value: value}
	for _, key := range path {
		m.Path = append(m.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	return m
}

func listOf(value *matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: value}},
	}}
}

// ClaimMatch matches a claim of a token that is a text, or a list that has it.
func ClaimMatch(path []string, m *matcherv3.StringMatcher) *matcherv3.MetadataMatcher {
	value := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
	return metadataMatch(TokenFilter, append([]string{TokenPayload}, path...), &matcherv3.ValueMatcher{
		MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{listOf(value), value}}},
	})
}

// claim returns what matches a claim of the request's token.
func claim(path []string) func(value string) []*rbacv3.Principal {
	return func(value string) []*rbacv3.Principal {
		return []*rbacv3.Principal{byMetadata(ClaimMatch(path, text(value)))}
	}
}

func byMetadata(m *matcherv3.MetadataMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{MetadataMatcher: m}}}
}

// requestPrincipal matches the token's ISSUER/SUBJECT, which may begin or end with a wildcard.
func requestPrincipal(value string) []*rbacv3.Principal {
	issuer, subject := text("*"), text("*")
	i := strings.LastIndexByte(value, '/') // an issuer may be a URL
	switch {
	case value == "*":
	case i >= 0 && strings.HasPrefix(value, "*"):
		issuer, subject = text(value[:i]), exact(value[i+1:])
	case i >= 0 && strings.HasSuffix(value, "*"):
		issuer, subject = exact(value[:i]), text(value[i+1:])
	case i >= 0:
		issuer, subject = exact(value[:i]), exact(value[i+1:])
	case strings.HasPrefix(value, "*"):
		subject = text(value)
	case strings.HasSuffix(value, "*"):
		issuer = text(value)
	default:
		issuer, subject = exact(value), exact("")
	}
	is := func(name string, m *matcherv3.StringMatcher) *rbacv3.Principal {
		value := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
		return byMetadata(metadataMatch(TokenFilter, []string{TokenPayload, name}, value))
	}
	return []*rbacv3.Principal{allPrincipals([]*rbacv3.Principal{is("iss", issuer), is("sub", subject)})}
}

func anyPrincipal() *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
}

func anyPermission() *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
}

// allPrincipals takes what all take; anything if there are none. onePrincipal takes what one takes.
func allPrincipals(all []*rbacv3.Principal) *rbacv3.Principal {
	if len(all) == 0 {
		all = []*rbacv3.Principal{anyPrincipal()}
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: all}}}
}

func onePrincipal(of []*rbacv3.Principal) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: of}}}
}

func allPermissions(all []*rbacv3.Permission) *rbacv3.Permission {
	if len(all) == 0 {
		all = []*rbacv3.Permission{anyPermission()}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}

func onePermission(of []*rbacv3.Permission) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: of}}}
}

// packed encodes a message that has no map, so that its bytes are stable.
func packed(m proto.Message) *anypb.Any {
	out, err := anypb.New(m)
	if err != nil {
		panic("authz: " + err.Error()) // the message is our own, of valid UTF-8
	}
	return out
}
