package istio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// lines returns the lines of an exposition, without spaces around them, as one text.
func lines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// convert writes parts as one exposition.
func convert(t *testing.T, from, to format, parts ...string) (out string, errs []error) {
	t.Helper()
	var b strings.Builder
	e := newExposition(&b, to)
	for _, part := range parts {
		errs = append(errs, e.part(strings.NewReader(part), from))
	}
	if err := e.finish(); err != nil {
		t.Fatal(err)
	}
	return b.String(), errs
}

func TestAnExpositionIsConvertedLineByLine(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from, to format
		in, want string
	}{
		{"text stays as it is", textFormat, textFormat, `
			# HELP a_total "Requests".\n
			# TYPE a_total counter
			a_total{code="200",path="/\"x\\y\n"} 1.5e+3 1700000000123
			a_total 0
			# TYPE h histogram
			h_bucket{le="+Inf"} 2
			h_sum NaN
			h_count 2
			without_a_type{x="#"} -Inf`, `
			# HELP a_total "Requests".\n
			# TYPE a_total counter
			a_total{code="200",path="/\"x\\y\n"} 1.5e+3 1700000000123
			a_total 0
			# TYPE h histogram
			h_bucket{le="+Inf"} 2
			h_sum NaN
			h_count 2
			without_a_type{x="#"} -Inf`},
		{"superfluous spaces, commas and comments are dropped", textFormat, textFormat, "\n# a comment\n#\n# EOF\n a{ x = \"1\" , y=\"2\" , } \t 1\t2 \r\nb{} 3\n# TYPE c gauge\t\n# UNIT c s\nc 1\n# TYPE d strange\nd 1", `
			a{x="1",y="2"} 1 2
			b 3
			# TYPE c gauge
			c 1
			d 1`},
		{"text becomes OpenMetrics", textFormat, openMetrics, `
			# HELP a_total "Requests" \\ \n.
			# TYPE a_total counter
			a_total 1 1700000000123
			# TYPE envoy_rq counter
			envoy_rq 2
			# TYPE u untyped
			u 3
			# TYPE h histogram
			h_bucket{le="+Inf"} 2
			h_sum 1
			h_count 2`, `
			# HELP a \"Requests\" \\ \n.
			# TYPE a counter
			a_total 1 1700000000.123
			# TYPE envoy_rq unknown
			envoy_rq 2
			# TYPE u unknown
			u 3
			# TYPE h histogram
			h_bucket{le="+Inf"} 2
			h_sum 1
			h_count 2
			# EOF`},
		{"a counter whose family's name is taken", textFormat, openMetrics, `
			# TYPE rq counter
			rq 1
			# TYPE rq_total counter
			rq_total 2`, `
			# TYPE rq unknown
			rq 1
			# TYPE rq_total unknown
			rq_total 2
			# EOF`},
		{"OpenMetrics becomes text", openMetrics, textFormat, `
			# TYPE a counter
			# HELP a \"Requests\" \\ \n.
			# UNIT a s
			a_total{x="1"} 1 1700000000.123 # {trace_id="x}y"} 0.5 1700000000.1
			a_created 1
			# TYPE i info
			i_info{v="1"} 1
			# TYPE s stateset
			s{s="a"} 1
			# TYPE g gaugehistogram
			g_bucket{le="+Inf"} 1 # {} 1
			# TYPE u unknown
			u 1
			# EOF`, `
			# HELP a_total "Requests" \\ \n.
			# TYPE a_total counter
			a_total{x="1"} 1 1700000000123
			a_created 1
			# TYPE i_info gauge
			i_info{v="1"} 1
			# TYPE s gauge
			s{s="a"} 1
			# TYPE g untyped
			g_bucket{le="+Inf"} 1
			# TYPE u untyped
			u 1`},
		{"OpenMetrics keeps exemplars and units", openMetrics, openMetrics, `
			# TYPE a_seconds counter
			# UNIT a_seconds seconds
			# HELP a_seconds It is \"x\".
			a_seconds_total 1 1.5 # {trace_id="x"} 0.5
			# EOF`, `
			# HELP a_seconds It is \"x\".
			# TYPE a_seconds counter
			# UNIT a_seconds seconds
			a_seconds_total 1 1.5 # {trace_id="x"} 0.5
			# EOF`},
		{"exemplars only where Prometheus takes one, and units only of their family", openMetrics, openMetrics, `
			# TYPE g gauge
			# UNIT g seconds
			g 1 # {t="x"} 1
			# TYPE a counter
			a_total 1 #{t="x"} 1
			a_total{b="c"} 1    #   {t="x"}   1   2.5
			# TYPE h histogram
			h_bucket{le="+Inf"} 1 # {t="x"} 1
			h_count 1 # {t="x"} 1
			# EOF`, `
			# TYPE g gauge
			g 1
			# TYPE a counter
			a_total 1 # {t="x"} 1
			a_total{b="c"} 1 # {t="x"} 1 2.5
			# TYPE h histogram
			h_bucket{le="+Inf"} 1 # {t="x"} 1
			h_count 1
			# EOF`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, errs := convert(t, tc.from, tc.to, lines(tc.in))
			if errs[0] != nil {
				t.Error(errs[0])
			}
			if want := lines(tc.want); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if tc.to == textFormat {
				parse(t, got)
			}
		})
	}
}

// A client that has asked for names in quotation marks gets them; a label is there once also with them.
func TestQuotedNamesAreForClientsThatAskForThem(t *testing.T) {
	for _, tc := range []struct {
		in string
		ok bool
	}{
		{"# TYPE \"a.b\" gauge\n{\"a.b\"} 1\n{\"a.b\",\"c.d\"=\"e\"} 2\n", true},
		{"a{\"c\"=\"1\",c=\"2\"} 1\n", false}, {"a{\"__name__\"=\"1\"} 1\n", false}, {"{c=\"1\"} 1\n", false}, {"{} 1\n", false},
		{"{\"\"} 1\n", false}, {"a{\"\"=\"x\"} 1\n", false}, {"a 1 # {\"\"=\"x\"} 1\n", false},
		{"{\"a\x00\"} 1\n", false}, {"a{\"b\x00\"=\"1\"} 1\n", false}, {"a{b=\"\x00\"} 1\n", true},
	} {
		var b strings.Builder
		e := newExposition(&b, openMetrics)
		e.quotes = true
		if err := e.part(strings.NewReader(tc.in+"# EOF\n"), openMetrics); (err == nil) != tc.ok || tc.ok && e.finish() == nil && b.String() != tc.in+"# EOF\n" {
			t.Errorf("%q: %v\n%s", tc.in, err, b.String())
		}
	}
}

// parse reads the text format with Prometheus' own parser, and returns the number of samples of each family.
func parse(t *testing.T, text string) map[string]int {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("it is not an exposition: %v\n%s", err, text)
	}
	counts := make(map[string]int)
	for name, f := range families {
		counts[name] = len(f.GetMetric())
	}
	return counts
}

func TestFamiliesOfOneNameAreDescribedOnce(t *testing.T) {
	app := "# HELP a A.\n# TYPE a gauge\na{app=\"%d\"} 1\n"
	got, errs := convert(t, textFormat, textFormat,
		"b 1\n"+fmt.Sprintf(app, 1), fmt.Sprintf(app, 2)+"# TYPE b counter\nb 2\n# TYPE c gauge\nc 1\n")
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	want := "b 1\n# HELP a A.\n# TYPE a gauge\na{app=\"1\"} 1\na{app=\"2\"} 1\nb 2\n# TYPE c gauge\nc 1\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if counts := parse(t, got); !maps.Equal(counts, map[string]int{"a": 2, "b": 2, "c": 1}) {
		t.Errorf("the families have %v samples", counts)
	}
}

// What is malformed ends its part, and the lines before it and the next part are there.
func TestAPartEndsWithItsLastGoodLine(t *testing.T) {
	for _, bad := range []string{
		"<html>", "a", "a ", "a{", "a{x} 1", "a{x=1} 1", `a{x="1} 1`, `a{x="1"y="2"} 1`, `a{x="\q"} 1`, `a{,} 1`, `a{"x"} 1 1`, `{"a"}`, `{x="1"} 1`, `{} 1`,
		"a x", "a 1 x", "a 1 2 3", "a 0x1", "a 1_0", "1a 1", "a\xff 1", "# TYPE", "#  HELP ", "# TYPE 1a gauge", `a 1 # {x="1"} 1`, "a{x=\"\xff\"} 1", "a1 1 NaN",
		// What Prometheus rejects, and with it the metrics of all parts.
		`d{a="b",a="c"} 3`, `d{__name__="c"} 3`, `{"foo.bar"} 1`, `a{"foo.bar"="x"} 1`, `# TYPE "foo.bar" gauge`,
		"a 1 1.5", "a 1 1e3", "a 1 +15", "a 1 -5", "a 1 99999999999999999999",
	} {
		got, errs := convert(t, textFormat, textFormat, "good 1\n"+bad+"\nlater 1\n", "next 1\n")
		if !errors.Is(errs[0], errMalformed) || got != "good 1\nnext 1\n" || errs[1] != nil {
			t.Errorf("%q: %v\n%s", bad, errs, got)
		}
	}
	for _, bad := range []string{"a 1\n", "a 1\n# EOF\nb 1\n", "a 1 # x\n# EOF\n", "a 1 # {x=\"1\"}\n# EOF\n",
		"a 1 1e300\n# EOF\n", "a 1 -5\n# EOF\n", "a 1 NaN\n# EOF\n", "a 1 # {} 1 NaN\n# EOF\n", "a 1 # {} 1 +Inf\n# EOF\n", "a 1 # {x=\"1\",x=\"2\"} 1\n# EOF\n"} {
		got, errs := convert(t, openMetrics, openMetrics, "good 1\n"+bad, "next 1\n# EOF\n")
		if !errors.Is(errs[0], errMalformed) || !strings.HasPrefix(got, "good 1\n") || !strings.HasSuffix(got, "next 1\n# EOF\n") || strings.Contains(got, "b 1") {
			t.Errorf("%q: %v\n%s", bad, errs, got)
		}
		if strings.Count(got, "# EOF") != 1 {
			t.Errorf("%q: # EOF is there %d times:\n%s", bad, strings.Count(got, "# EOF"), got)
		}
	}
}

func TestALineThatIsCutIsNotWritten(t *testing.T) {
	var b strings.Builder
	e := newExposition(&b, textFormat)
	broken := errors.New("connection reset")
	err := e.part(io.MultiReader(strings.NewReader("a 1\nb 2"), iotest.ErrReader(broken)), textFormat)
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := e.part(iotest.OneByteReader(strings.NewReader("c 3")), textFormat); err != nil { // complete, without a line break
		t.Error(err)
	}
	if err := e.finish(); err != nil || b.String() != "a 1\nc 3\n" {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// repeated returns a text again and again.
type repeated struct{ text, rest string }

func (r *repeated) Read(b []byte) (int, error) {
	if r.rest == "" {
		r.rest = r.text
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func TestAnEndlessPartIsCut(t *testing.T) {
	names, families := 0, 0
	for _, tc := range []struct {
		name string
		in   io.Reader
		want error
	}{
		{"samples", &repeated{text: `a{x="1"} 1` + "\n"}, errTooLarge},
		{"comments", &repeated{text: "# no\n"}, errTooLarge},
		{"one line", &repeated{text: "a"}, errMalformed},
		{"names", readerFunc(func(b []byte) (int, error) { names++; return copy(b, fmt.Sprintf("n%d 1\n", names)), nil }), errTooLarge},
		{"families", readerFunc(func(b []byte) (int, error) {
			families++
			return copy(b, fmt.Sprintf("# TYPE f%d gauge\n", families)), nil
		}), errTooLarge},
	} {
		e := newExposition(io.Discard, textFormat)
		e.maxPart = 2 * maxLine
		if err := e.part(tc.in, textFormat); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err := e.part(strings.NewReader("# TYPE own gauge\nown 1\n"), textFormat); err != nil {
			t.Errorf("%s: the next part: %v", tc.name, err)
		}
	}
	if names > maxFamilies+2 || families > maxFamilies+2 {
		t.Errorf("%d names and %d families were read", names, families)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestALongLineIsWrittenWhole(t *testing.T) {
	long := `a{x="` + strings.Repeat("y", 200_000) + `"} 1` + "\n"
	got, errs := convert(t, textFormat, textFormat, long+"b 1\n"+long)
	if errs[0] != nil || got != long+"b 1\n"+long {
		t.Errorf("%v, %d bytes of %d", errs[0], len(got), 2*len(long)+4)
	}
}

// Whatever a part contains, what is written is an exposition in which the converter finds nothing to change.
func FuzzExposition(f *testing.F) {
	for _, text := range []string{
		"# HELP a A.\n# TYPE a counter\na 1\n# TYPE a_total counter\na_total{x=\"1\",} 1 5\n",
		"# TYPE a counter\na_total 1 1.5 # {x=\"1\"} 2\n# EOF\n", `{"a.b",c="d"} 1`, "a 1\n<html>\n", "# HELP a \\\"\\q\\",
	} {
		f.Add(text, false, true)
		f.Add(text, true, false)
	}
	f.Fuzz(func(t *testing.T, text string, fromOpen, toOpen bool) {
		from, to := textFormat, textFormat
		if fromOpen {
			from = openMetrics
		}
		if toOpen {
			to = openMetrics
		}
		first, _ := convert(t, from, to, text)
		again, errs := convert(t, to, to, first)
		if errs[0] != nil || again != first {
			t.Errorf("%v\n%q\nbecomes\n%q", errs[0], first, again)
		}
		if to == textFormat && !strings.Contains(text, "# TYPE") { // the parser also checks families, which samples of different parts may mix
			parse(t, first)
		}
		if to == openMetrics && !bytes.HasSuffix([]byte(first), []byte("# EOF\n")) {
			t.Errorf("it ends without # EOF: %q", first)
		}
	})
}

func BenchmarkExposition(b *testing.B) {
	text := strings.Repeat("# TYPE envoy_cluster_upstream_rq counter\n"+strings.Repeat(`envoy_cluster_upstream_rq{envoy_response_code="200",envoy_cluster_name="outbound|80||shop.default.svc"} 12345`+"\n", 20), 500)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		e := newExposition(io.Discard, openMetrics)
		if err := e.part(strings.NewReader(text), textFormat); err != nil {
			b.Fatal(err)
		}
	}
}
