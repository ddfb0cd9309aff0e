package redact

import (
	"slices"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	access_tokenv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/grpc_service/call_credentials/access_token/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

func TestHeadersWithCredentials(t *testing.T) {
	for _, tc := range []struct {
		header, value string
		secret        bool
	}{
		{"authorization", "Bearer " + planted, true},
		{"Proxy-Authorization", "Basic " + planted, true},
		{"cookie", "session=" + planted, true},
		{"set-cookie", "session=" + planted, true},
		{"x-api-key", planted, true},
		{"X-Goog-Api-Key", planted, true},
		{"apikey", planted, true},
		{"x-consul-token", planted, true},
		{"x_vault_token", planted, true},
		{"x-amz-security-token", planted, true},
		{"x-authtoken", planted, true},
		{"client-secret", planted, true},
		{"x-user-password", planted, true},
		{"ocp-apim-subscription-key", planted, true},
		{"authorization", planted + " %REQ(x-a)%", true},
		{"authorization", "Bearer %REQ(x-token)%", false},
		{"authorization", "Bearer ", false},
		{"x-token", "", false},
		{"x-request-id", planted, false},
		{"x-routing-key", planted, false},
		{"x-authority", planted, false},
		{"content-type", planted, false},
	} {
		option := &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: tc.header, Value: tc.value}}
		raw := &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: tc.header, RawValue: []byte(tc.value)}}
		exact := &routev3.HeaderMatcher{Name: tc.header, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
			StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: tc.value}},
		}}
		old := &routev3.HeaderMatcher{Name: tc.header} // Envoy's older form, which is deprecated in Go
		old.ProtoReflect().Set(old.ProtoReflect().Descriptor().Fields().ByName("prefix_match"), protoreflect.ValueOfString(tc.value))
		var finder Finder
		for form, m := range map[string]proto.Message{
			"a header":        &routev3.RouteConfiguration{RequestHeadersToAdd: []*corev3.HeaderValueOption{option}},
			"a raw header":    &routev3.VirtualHost{ResponseHeadersToAdd: []*corev3.HeaderValueOption{raw}},
			"metadata":        &corev3.GrpcService{InitialMetadata: []*corev3.HeaderValue{option.Header}},
			"a matcher":       &routev3.RouteMatch{Headers: []*routev3.HeaderMatcher{exact}},
			"a prefix":        &routev3.RouteMatch{Headers: []*routev3.HeaderMatcher{old}},
			"an inner header": &routev3.VirtualHost{Routes: []*routev3.Route{{RequestHeadersToAdd: []*corev3.HeaderValueOption{option}}}},
		} {
			why := finder.Sensitive(pack(t, m))
			if (why != "") != tc.secret || strings.Contains(why, planted) {
				t.Errorf("%s: %q of %s: found %q", form, tc.value, tc.header, why)
			}
			if got := string(JSON(m)); strings.Contains(got, Marker) != tc.secret || tc.secret && strings.Contains(got, planted) {
				t.Errorf("%s: %q of %s is shown as %s", form, tc.value, tc.header, got)
			}
		}
	}
}

// A pattern describes the form of a credential and is no secret: routes by cookie are common.
func TestAPatternIsNoCredential(t *testing.T) {
	pattern := &matcherv3.RegexMatcher{Regex: "^(.*?;)?(user=jason)(;.*)?$"}
	m := &routev3.RouteMatch{Headers: []*routev3.HeaderMatcher{
		{Name: "cookie", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: pattern}}}},
		{Name: "authorization", HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}},
		{Name: "authorization", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "Bearer "}}}},
	}}
	var finder Finder
	if why := finder.Sensitive(pack(t, m)); why != "" {
		t.Error(why)
	}
}

func TestAPasswordInAURLIsHidden(t *testing.T) {
	m := &corev3.HttpUri{Uri: "https://user:" + planted + "@keys.example.com/jwks?x=a@b"}
	var finder Finder
	if why := finder.Sensitive(pack(t, m)); why == "" || strings.Contains(why, planted) {
		t.Errorf("%q", why)
	}
	if got := string(JSON(m)); strings.Contains(got, planted) {
		t.Error(got)
	}
	m.Uri = "https://keys.example.com/jwks?x=a@b:c"
	if why := finder.Sensitive(pack(t, m)); why != "" {
		t.Errorf("%q", why)
	}
}

func TestAddressesAreMasked(t *testing.T) {
	for in, want := range map[string]string{
		"xds.example.com:443":             "xds.example.com:443",
		"unix:/run/a@b.sock":              "unix:/run/a@b.sock",
		"unix:a@b.sock":                   "unix:a@b.sock",
		"file:/etc/xds@1":                 "file:/etc/xds@1",
		"https://h/p@q":                   "https://h/p@q",
		"https://user:p4ss@h:1/p":         "https://[redacted]@h:1/p",
		"https://user:p4/ss@h:1/p":        "https://[redacted]@h:1/p",
		"https://user:p4@ss@h:1/p":        "https://[redacted]@h:1/p",
		"https://token@h":                 "https://[redacted]@h",
		"user:p4ss@xds.example.com:443":   "[redacted]@xds.example.com:443",
		"dns:///user:p4ss@example.com:44": "dns:///[redacted]@example.com:44",
		"https://user:%zz@h":              "https://[redacted]@h",
		"":                                "",
	} {
		if got := MaskURL(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// A private key is hidden in a dump wherever it is: the API does not mark every field that may hold one.
func TestAPrivateKeyIsHiddenInAnyField(t *testing.T) {
	const pem = "-----BEGIN PRIVATE KEY-----\n" + planted + "\n-----END PRIVATE KEY-----\n"
	layer, err := structpb.NewStruct(map[string]any{"a": map[string]any{"b": pem}})
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]proto.Message{
		"text":   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "local key = [[" + pem + "]]"}},
		"bytes":  inline(pem),
		"struct": &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"x": layer}},
	} {
		if got := string(JSON(m)); leak(got) != "" || !strings.Contains(got, Marker) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// In a generic matcher, the input names the header that a value is compared with.
func TestWhatAGenericMatcherComparesACredentialWithIsHidden(t *testing.T) {
	typed := func(m proto.Message) *xdscorev3.TypedExtensionConfig {
		return &xdscorev3.TypedExtensionConfig{Name: "x", TypedConfig: pack(t, m)}
	}
	written, err := structpb.NewStruct(map[string]any{"headerName": "X-Api-Key"})
	if err != nil {
		t.Fatal(err)
	}
	onMatch := &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{Action: typed(&routev3.Route{Name: "the-route"})}}
	tokens := &xdsmatcherv3.Matcher_MatcherTree_MatchMap{Map: map[string]*xdsmatcherv3.Matcher_OnMatch{"Bearer " + planted: onMatch, "Bearer " + planted + "2": onMatch}}
	var finder Finder
	for name, tc := range map[string]struct {
		input  proto.Message
		secret bool
	}{
		"authorization":  {&matcherv3.HttpRequestHeaderMatchInput{HeaderName: "authorization"}, true},
		"a response":     {&matcherv3.HttpResponseHeaderMatchInput{HeaderName: "set-cookie"}, true},
		"a TypedStruct":  {&xdstypev3.TypedStruct{TypeUrl: "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput", Value: written}, true},
		"another header": {&matcherv3.HttpRequestHeaderMatchInput{HeaderName: "x-tenant"}, false},
		"a parameter":    {&matcherv3.HttpRequestQueryParamMatchInput{QueryParam: "q"}, false},
	} {
		predicate := func(of *xdsmatcherv3.StringMatcher) proto.Message {
			single := &xdsmatcherv3.Matcher_MatcherList_Predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
				SinglePredicate: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
					Input:   typed(tc.input),
					Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: of},
				},
			}}
			not := &xdsmatcherv3.Matcher_MatcherList_Predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_NotMatcher{NotMatcher: single}}
			return &routev3.VirtualHost{Matcher: &xdsmatcherv3.Matcher{MatcherType: &xdsmatcherv3.Matcher_MatcherList_{MatcherList: &xdsmatcherv3.Matcher_MatcherList{
				Matchers: []*xdsmatcherv3.Matcher_MatcherList_FieldMatcher{{Predicate: not, OnMatch: onMatch}},
			}}}}
		}
		tree := func(of *xdsmatcherv3.Matcher_MatcherTree) proto.Message {
			of.Input = typed(tc.input)
			return &routev3.VirtualHost{Matcher: &xdsmatcherv3.Matcher{MatcherType: &xdsmatcherv3.Matcher_MatcherTree_{MatcherTree: of}}}
		}
		for form, m := range map[string]proto.Message{
			"exact":      predicate(&xdsmatcherv3.StringMatcher{MatchPattern: &xdsmatcherv3.StringMatcher_Exact{Exact: planted}}),
			"prefix":     predicate(&xdsmatcherv3.StringMatcher{MatchPattern: &xdsmatcherv3.StringMatcher_Prefix{Prefix: planted}}),
			"suffix":     predicate(&xdsmatcherv3.StringMatcher{MatchPattern: &xdsmatcherv3.StringMatcher_Suffix{Suffix: planted}}),
			"contains":   predicate(&xdsmatcherv3.StringMatcher{MatchPattern: &xdsmatcherv3.StringMatcher_Contains{Contains: planted}}),
			"exact map":  tree(&xdsmatcherv3.Matcher_MatcherTree{TreeType: &xdsmatcherv3.Matcher_MatcherTree_ExactMatchMap{ExactMatchMap: tokens}}),
			"prefix map": tree(&xdsmatcherv3.Matcher_MatcherTree{TreeType: &xdsmatcherv3.Matcher_MatcherTree_PrefixMatchMap{PrefixMatchMap: tokens}}),
		} {
			if why := finder.Sensitive(pack(t, m)); (why != "") != tc.secret || strings.Contains(why, planted) {
				t.Errorf("%s, %s: found %q", name, form, why)
			}
			if got := string(JSON(m)); strings.Contains(got, planted) == tc.secret || strings.Contains(got, Marker) != tc.secret || !strings.Contains(got, "the-route") {
				t.Errorf("%s, %s: shown as %s", name, form, got)
			}
			said := "Incorrect configuration: " + planted + ". Couldn't find the-route"
			if got := finder.Reason(said, slices.Values([]*anypb.Any{pack(t, m)})); strings.Contains(got, planted) == tc.secret || !strings.Contains(got, "the-route") {
				t.Errorf("%s, %s: the reason is %s", name, form, got)
			}
		}
		public := tree(&xdsmatcherv3.Matcher_MatcherTree{TreeType: &xdsmatcherv3.Matcher_MatcherTree_PrefixMatchMap{
			PrefixMatchMap: &xdsmatcherv3.Matcher_MatcherTree_MatchMap{Map: map[string]*xdsmatcherv3.Matcher_OnMatch{"Bearer ": onMatch}},
		}})
		if why := finder.Sensitive(pack(t, public)); why != "" {
			t.Errorf("%s, a scheme: found %q", name, why)
		}
	}
}

func TestAPrivateKeyIsHiddenInTheKeysOfAMap(t *testing.T) {
	const pem = "-----BEGIN PRIVATE KEY-----\n" + planted + "\n-----END PRIVATE KEY-----\n"
	m := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{pem: {}, "x" + pem: {}, "other": {}}}
	got := string(JSON(m))
	if leak(got) != "" || !strings.Contains(got, `"`+Marker+`": `) || !strings.Contains(got, `"`+Marker+` 2": `) || !strings.Contains(got, `"other"`) {
		t.Error(got)
	}
}

// Fields of Envoy's API that hold nothing but a credential and are not marked as sensitive.
func TestTokensOfGRPCServicesAreHidden(t *testing.T) {
	google := func(c *corev3.GrpcService_GoogleGrpc_CallCredentials) proto.Message {
		return &corev3.GrpcService_GoogleGrpc{TargetUri: "shown", CallCredentials: []*corev3.GrpcService_GoogleGrpc_CallCredentials{c}}
	}
	for name, m := range map[string]proto.Message{
		"access token":  google(&corev3.GrpcService_GoogleGrpc_CallCredentials{CredentialSpecifier: &corev3.GrpcService_GoogleGrpc_CallCredentials_AccessToken{AccessToken: planted}}),
		"refresh token": google(&corev3.GrpcService_GoogleGrpc_CallCredentials{CredentialSpecifier: &corev3.GrpcService_GoogleGrpc_CallCredentials_GoogleRefreshToken{GoogleRefreshToken: planted}}),
		"IAM": google(&corev3.GrpcService_GoogleGrpc_CallCredentials{CredentialSpecifier: &corev3.GrpcService_GoogleGrpc_CallCredentials_GoogleIam{
			GoogleIam: &corev3.GrpcService_GoogleGrpc_CallCredentials_GoogleIAMCredentials{AuthoritySelector: "shown", AuthorizationToken: planted},
		}}),
		"extension": &corev3.TypedExtensionConfig{Name: "shown", TypedConfig: pack(t, &access_tokenv3.AccessTokenCredentials{Token: planted})},
		"lightstep": &tracev3.LightstepConfig{CollectorCluster: "shown", AccessToken: inline(planted)},
	} {
		if got := string(JSON(m)); leak(got) != "" || !strings.Contains(got, Marker) || !strings.Contains(got, "shown") {
			t.Errorf("%s: %s", name, got)
		}
		var finder Finder
		if finder.Sensitive(pack(t, m)) == "" {
			t.Errorf("%s would be stored in the clear", name)
		}
	}
	if got := string(JSON(&tracev3.LightstepConfig{AccessToken: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/shown"}}})); !strings.Contains(got, "/shown") {
		t.Errorf("the name of a file is no secret: %s", got)
	}
}

// A name that no longer exists in Envoy's API would hide nothing.
func TestTypesWithCredentialsExist(t *testing.T) {
	for name := range credentialFinders {
		if _, err := envoytypes.Resolver.FindMessageByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
