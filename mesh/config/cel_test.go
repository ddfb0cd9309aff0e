package config

import "testing"

func TestFiltersMustBeExpressionsOfCEL(t *testing.T) {
	for _, text := range []string{
		`true`, `response.code >= 400`, `!(a || b) && c`, `-1 < 2u`, `request.headers['x-a'] == "b"`, `has(request.auth.claims) ? 1.5e3 : .5`,
		`request.url_path.startsWith("/a") && size(request.id) in [1, 2, 3,]`, `{"a": 1, 'b': [{}]}["a"] == 0x1F`, `[1].exists(x, x > 0)`,
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

func TestFormatsMustBeThoseOfEnvoy(t *testing.T) {
	for _, text := range []string{"", "a", "%%", "100%% %PROTOCOL%", "%REQ(X-A?X-B):10% %START_TIME(%Y/%m)%-", "%UPSTREAM_CLUSTER_RAW%"} {
		if problem := formatProblem(text); problem != "" {
			t.Errorf("%s: %s", text, problem)
		}
	}
	for _, text := range []string{"%", "50% of", "%req(x)%", "%REQ(X-A%", "%REQ(X):a%", "%PROTOCOL"} {
		if formatProblem(text) == "" {
			t.Errorf("%q is accepted", text)
		}
	}
}
