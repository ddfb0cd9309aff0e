package config

import "testing"

func TestFiltersMustBeExpressionsOfCEL(t *testing.T) {
	for _, text := range []string{
		`true`, `response.code >= 400`, `!(a || b) && c`, `-1 < 2u`, `request.headers['x-a'] == "b"`, `has(request.auth.claims) ? 1.5e3 : .5`,
		`request.url_path.startsWith("/a") && size(request.id) in [1, 2, 3,]`, `{"a": 1, 'b': [{}]}["a"] == 0x1F`, `request.headers['a'].matches('^[a-z]+$')`, `matches(a, r"\d")`, `a.getHours('UTC') == 1`, `-9223372036854775808 < 18446744073709551615u`,
		`r"\d" + b'x' + '''long "text"''' != "\"quoted\"" // a comment`, `google.protobuf.Duration{seconds: 1}.seconds == 1`, `.a.b`, `a.in_b`, `--a`, `double(x).matches("y")`,
	} {
		if problem := celProblem(text); problem != "" {
			t.Errorf("%s: %s", text, problem)
		}
	}
	for _, text := range []string{
		``, ` `, `a &&`, `a b`, `(a`, `a)`, `[1`, `"open`, `'a"`, `a.`, `a.1`, `f(`, `size(a,)`, `unknown(a)`, `a.unknown()`, `a ? b`, `a ? : c`, `if`, `for`, `a = b`, `a & b`,
		`{1}`, `{1: 2`, `#`, `a..b`, `in`, `"\
"`, `a ?? b`, `1a`, `\x00`,
		// what other implementations of CEL have and Envoy does not
		`[1].exists(x, x > 0)`, `[1].all(x, x > 0)`, `[1].map(x, x) == [1]`, `[1].filter(x, true) == [1]`, `[1].exists_one(x, true)`, `string(response.code).startsWith('5')`,
		`size()`, `size(a, b)`, `a.int()`, `int()`, `a.contains()`, `a.startsWith('b', 'c')`, `getHours(a)`, `has(request)`, `has(request.headers['a'])`,
		`request.path.matches('*')`, `matches(request.path, "\\p{Letter}")`, `request.path.matches(r'a**')`, `"\q" == a`, `'\x4' == a`, `9223372036854775809 > 1`,
		`18446744073709551616u > 1u`, `a.b{c: 1}`, `foo.google.protobuf.Duration{seconds: 1} == a`,
	} {
		if celProblem(text) == "" {
			t.Errorf("%q is accepted", text)
		}
	}
	deep := ""
	for range 10_000 {
		deep += "("
	}
	if celProblem(deep) == "" {
		t.Error("an expression that is nested without end is accepted")
	}
}

// test/e2e/mesh asks Envoy about both lists.
func TestFormatsMustBeThoseOfEnvoy(t *testing.T) {
	for _, text := range takenFormats {
		if problem := formatProblem(text); problem != "" {
			t.Errorf("%s: %s", text, problem)
		}
	}
	for _, text := range append([]string{"%UPSTREAM_SERVER_NAME%", "%REQUEST_HEADER(a)%", "%REQ_WITHOUT_QUERY(a)%"}, refusedFormats...) {
		if formatProblem(text) == "" {
			t.Errorf("%q is accepted", text)
		}
	}
	for _, text := range []string{"%UPSTREAM_SERVER_NAME%", "%QUERY_PARAMS(ORIG):5%", "%REQ_WITHOUT_QUERY(a?b):5%", "%REQ(a)%"} {
		if problem := logFormatProblem(text); problem != "" {
			t.Errorf("%s: %s", text, problem)
		}
	}
}

// What Envoy 1.36 and 1.40 have said when they were asked.
var (
	takenFormats = []string{
		"", "a", "%%", "100%% %PROTOCOL%", "%%%PROTOCOL%%%", "%REQ(X-A?X-B):10% %START_TIME(%Y/%m)%-", "%UPSTREAM_CLUSTER_RAW%", "%REQ(?b)%", "%REQ(a?)%", "%REQ(:path)%", "%REQ(a):0%",
		"%REQ(a%b)%", "%PATH(WQ)%", "%PATH(NQ:ORIG)%", "%PATH(WQ:ORIG:c)%", "%PATH():5%", "%PATH:5%", "%COMMON_DURATION(DS_RX_BEG:US_TX_BEG:us)%", "%COMMON_DURATION(:b)%", "%METADATA(ROUTE)%",
		"%METADATA(VIRTUAL_HOST:a:b):5%", "%FILTER_STATE(a:FIELD:b:c)%", "%FILTER_STATE(a:)%", "%FILTER_STATE(a):5%", "%UPSTREAM_FILTER_STATE(a:PLAIN)%", "%DYNAMIC_METADATA(a::b)%",
		"%UPSTREAM_METADATA([\"a\",\"b\"])%", "%CLUSTER_METADATA(a:b)%", "%START_TIME(%)%", "%START_TIME%", "%EMIT_TIME(%s.%3f)%", "%RESPONSE_CODE_DETAILS(X)%", "%ENVIRONMENT(A):5%",
		"%CEL(size(request.headers['a'])):5%", "%TYPED_CEL(request.path)%", "%QUERY_PARAM(a b):5%", "%STREAM_INFO_REQ(a)%", "%TRAILER(a?b)%", "%DOWNSTREAM_PEER_CERT_V_START(b%Y)%", "%PROTOCOL()%",
	}
	refusedFormats = []string{
		"%", "50% of", "%req(x)%", "%hostname%", "%REQ(X-A%", "%REQ(X):a%", "%PROTOCOL", "%PROTO COL%", "%FOO%", "%_%", "%0%", "%REQ%", "%REQ()%", "%REQ(a?b?c)%", "%REQ(a b)%", "%REQ(a(b))%",
		"%REQ(a):99999999999999999999%", "%REQ(a):5x%", "%REQ(a)x%", "%PROTOCOL(a)%", "%PROTOCOL:5%", "%PATH(X)%", "%PATH(WQ:X)%", "%COMMON_DURATION%", "%COMMON_DURATION(a:b:s)%",
		"%COMMON_DURATION(a:b:ms:d)%", "%COMMON_DURATION(a:b:ms):5%", "%METADATA(X:a)%", "%METADATA%", "%FILTER_STATE%", "%FILTER_STATE(a:FOO)%", "%FILTER_STATE(a:FIELD)%",
		"%FILTER_STATE(a:PLAIN:b)%", "%UPSTREAM_METADATA(a):5%", "%DYNAMIC_METADATA%", "%START_TIME(%Y):5%", "%RESPONSE_CODE_DETAILS:5%", "%ENVIRONMENT()%", "%CEL(1 +)%", "%CEL()%", "%CEL(string(1))%",
	}
)
