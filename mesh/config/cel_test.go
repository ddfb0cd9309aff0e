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

// mesh/generate asks Envoy about what is valid.
func TestFormatsMustBeThoseOfEnvoy(t *testing.T) {
	for _, text := range envoysWord(t, "formats-taken.txt") {
		if problem := formatProblem(text); problem != "" {
			t.Errorf("%s: %s", text, problem)
		}
	}
	for _, text := range append([]string{"%UPSTREAM_SERVER_NAME%", "%REQUEST_HEADER(a)%", "%REQ_WITHOUT_QUERY(a)%"}, envoysWord(t, "formats-refused.txt")...) {
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
