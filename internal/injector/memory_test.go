package injector

import (
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// large are pods, and rubbish in their place, of which the parts are as many as the size allows.
func large() map[string]string {
	const size = 3 << 20
	fill := func(of string) string { return strings.Repeat(of, size/len(of)) }
	in := func(before string) string { return strings.Replace(plainPod, `"image"`, before+`"image"`, 1) }
	metadata := func(before string) string {
		return strings.Replace(plainPod, `"generateName"`, before+`"generateName"`, 1)
	}
	keys := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	return map[string]string{
		"arguments":               in(`"args":[` + fill(`"",`) + `""],`),
		"variables":               in(`"env":[` + fill(`{},`) + `{}],`),
		"ports":                   in(`"ports":[` + fill(`{},`) + `{}],`),
		"containers":              strings.Replace(plainPod, `[{`, `[`+keys(`{"name":"c%d"},`, size/16)+`{`, 1),
		"as many as allowed":      strings.Replace(plainPod, `[{`, `[`+keys(`{"name":"c%d"},`, 1650)+`{`, 1),
		"long names":              strings.Replace(plainPod, `[{`, `[`+keys(`{"name":"\u0001%d`+strings.Repeat(`\"`, 58)+`"},`, 1650)+`{`, 1),
		"long names, fewer":       strings.Replace(plainPod, `[{`, `[`+keys(`{"name":"\u0001%d`+strings.Repeat(`\"`, 58)+`"},`, 350)+`{`, 1),
		"names that fit":          strings.Replace(plainPod, `[{`, `[`+keys(`{"name":"c%d"},`, 1000)+`{`, 1),
		"volumes":                 strings.Replace(plainPod, `"containers"`, `"volumes":[`+keys(`{"name":"v%d"},`, 1650)+`{"name":"v"}],"containers"`, 1),
		"a hook":                  in(`"lifecycle":{"preStop":{"exec":{"command":[` + fill(`"",`) + `""]}}},`),
		"annotations":             metadata(`"annotations":{` + keys(`"%d":"",`, size/12) + `"a":""},`),
		"an annotation":           metadata(`"annotations":{"a":"` + fill(`\u0001`) + `"},`),
		"control planes":          metadata(`"annotations":{"holdfast.dev/upstream":"` + fill("a,") + `a"},`),
		"a status":                metadata(`"annotations":{"holdfast.dev/status":"{\"version\":1,\"created\":[` + fill(`\"\",`) + `\"\"]}"},`),
		"a small status":          metadata(`"annotations":{"holdfast.dev/status":"{\"version\":1,\"created\":[` + strings.Repeat(`\"\",`, 60_000) + `\"\"]}"},`),
		"an unknown annotation":   metadata(`"annotations":{"holdfast.dev/` + fill("a") + `":""},`),
		"a name":                  metadata(`"name":"` + fill("a") + `",`),
		"unknown fields":          metadata(keys(`"%d":0,`, size/12)),
		"deep":                    metadata(`"x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `,`),
		"a list":                  `[` + fill(`0,`) + `0]`,
		"numbers":                 `{"x":[` + fill(`0,`) + `0]}`,
		"no list":                 `{"spec":{"containers":` + fill("1") + `}}`,
		"a node's affinity":       strings.Replace(plainPod, `"containers"`, `"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[`+fill(`{},`)+`{}]}}},"containers"`, 1),
		"ports of one container":  in(`"ports":[` + keys(`{"containerPort":%d},`, 1200) + `{}],`),
		"labels of many kinds":    metadata(`"labels":{` + keys(`"%d":"",`, 2400) + `"a":""},`),
		"containers without name": strings.Replace(plainPod, `[{`, `[`+fill(`{},`)+`{`, 1),
	}
}

// allocated returns how many bytes a function allocates, of which some are garbage before it returns.
func allocated(do func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// Whatever a pod has, its review takes little memory: who may create pods ends no replica.
func TestALargePodTakesLittleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	r, i := testReviewer(t, false)
	answered(t, r, reviewOf("shop", plainPod)) // parses what is injected
	for name, pod := range large() {
		t.Run(name, func(t *testing.T) {
			body := reviewOf("shop", pod)
			if len(body) > maxReview {
				t.Fatalf("%d bytes", len(body))
			}
			var answer []byte
			var err error
			raw := []byte(body)
			taken := allocated(func() { answer, _, err = r.answer(raw) })
			t.Logf("%.1f MiB of %.1f MiB: %.150s", float64(taken)/(1<<20), float64(len(body))/(1<<20), answer)
			if err != nil || taken > maxAnswering {
				t.Errorf("%v: %d bytes were allocated", err, taken)
			}
		})
	}
	// With the body, of which a client need not say how long it is.
	req := httptest.NewRequest("POST", "/inject", io.NopCloser(strings.NewReader(reviewOf("shop", large()["arguments"]))))
	req.ContentLength = -1
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if taken := allocated(func() { handleReviews(r, i.metrics).ServeHTTP(w, req) }); taken > maxAnswering+4*maxReview || w.Code != 200 {
		t.Errorf("%d: %d bytes were allocated", w.Code, taken)
	}
}

// What is no review at all is rejected before anything is made of it.
func TestRubbishCostsNothing(t *testing.T) {
	r, _ := testReviewer(t, false)
	for name, body := range map[string]string{
		"numbers":    `{"x":[` + strings.Repeat("0,", 2<<20-10) + `0]}`,
		"objects":    `[` + strings.Repeat("{},", 1<<20) + `{}]`,
		"groups":     `{"request":{"userInfo":{"groups":[` + strings.Repeat(`"",`, 1<<20) + `""]}}}`,
		"extra":      `{"request":{"userInfo":{"extra":{` + strings.Repeat(`"a":[],`, 1<<19) + `"b":[]}}}}`,
		"the former": `{"request":{"oldObject":[` + strings.Repeat("0,", 1<<20) + `0]}}`,
	} {
		if taken := allocated(func() { _, _, _ = r.answer([]byte(body)) }); taken > int64(len(body))+64<<10 {
			t.Errorf("%s: %d bytes of %d", name, taken, len(body))
		}
	}
}

// What may be in memory at once fits into the container.
func TestAllReviewsFitIntoTheContainer(t *testing.T) {
	text, err := os.ReadFile("../../deploy/injector/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`limits: \{memory: (\d+)Mi\}`).FindSubmatch(text)
	if found == nil {
		t.Fatal("no limit")
	}
	limit, _ := strconv.Atoi(string(found[1]))
	const idle = 24 << 20 // Go's heap and the program
	// A buffer that grows has up to twice the bytes that are in it.
	most := idle + 2*maxBodies + maxConcurrent*maxAnswering + maxConnections*(40<<10)
	if float64(most) > 0.8*float64(limit<<20) {
		t.Errorf("%d MiB may be in use, of %d", most>>20, limit)
	}
}

// A name and an error that quotes the pod are short, whatever the pod has.
func TestALongNameIsCut(t *testing.T) {
	r, _ := testReviewer(t, false)
	for _, name := range []string{"a name", "an unknown annotation", "control planes"} {
		response, _ := answered(t, r, reviewOf("shop", large()[name]))
		if got := strings.Join(response.Warnings, ""); len(got) > 2<<10 {
			t.Errorf("%s: a warning of %d bytes", name, len(got))
		}
	}
}

func BenchmarkReview(b *testing.B) {
	i := &Injector{metrics: newMetrics("test")}
	s, err := ParseSettings([]byte("upstream: xds.example:443\n"))
	if err != nil {
		b.Fatal(err)
	}
	i.settings.Store(s)
	r := &reviewer{settings: &i.settings, namespace: "holdfast", log: slog.New(slog.DiscardHandler)}
	for _, name := range []string{"arguments", "as many as allowed", "a list"} {
		body := []byte(reviewOf("shop", large()[name]))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = r.answer(body)
			}
		})
	}
}
