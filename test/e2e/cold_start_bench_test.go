package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// BenchmarkColdStart measures from the start of Envoy to its first answer of 200:
// directly on the control plane, through an agent that has just started, and
// through one that has served before. The three take turns, so that the ratios
// of the medians hold on a busy machine. Run it with -benchtime 15x.
func BenchmarkColdStart(b *testing.B) {
	for _, form := range xdstest.Protocols() {
		b.Run(string(form), func(b *testing.B) {
			w := newWorld(b, form, form)
			var direct, fresh, warm []time.Duration
			for b.Loop() {
				file, admin := w.bootstrap()
				w.bypass(file)
				direct = append(direct, w.firstAnswer(file, admin))
				w.startAgent()
				fresh = append(fresh, w.firstAnswer(w.bootstrap()))
				warm = append(warm, w.firstAnswer(w.bootstrap()))
				w.check(w.agent.Stop(10 * time.Second))
			}
			base := median(direct)
			b.ReportMetric(0, "ns/op") // the sum of three is of no use
			b.ReportMetric(base.Seconds()*1000, "direct-ms")
			b.ReportMetric(median(fresh).Seconds()*1000, "fresh-ms")
			b.ReportMetric(median(warm).Seconds()*1000, "warm-ms")
			b.ReportMetric(float64(median(fresh))/float64(base), "fresh/direct")
			b.ReportMetric(float64(median(warm))/float64(base), "warm/direct")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// firstAnswer starts an Envoy, waits for its first answer, and kills it.
func (w *world) firstAnswer(bootstrap, admin string) time.Duration {
	w.Helper()
	begun := time.Now()
	w.envoy = w.runEnvoy(bootstrap, admin)
	w.serves("v1")
	took := time.Since(begun)
	w.envoy.Kill()
	return took
}

// bypass makes a bootstrap lead to the control plane itself.
func (w *world) bypass(file string) {
	w.Helper()
	b, err := os.ReadFile(file)
	w.check(err)
	host, port, err := net.SplitHostPort(w.cpAddr)
	w.check(err)
	pipe := fmt.Sprintf(`"path": %q`, w.path("xds.sock"))
	i := bytes.Index(b, []byte(`"pipe": {`))
	if i < 0 || !bytes.Contains(b[i:], []byte(pipe)) {
		w.Fatalf("%s leads to no Unix socket:\n%s", file, b)
	}
	b = bytes.Replace(b, []byte(`"pipe": {`), []byte(`"socket_address": {`), 1)
	b = bytes.Replace(b, []byte(pipe), fmt.Appendf(nil, `"address": %q, "port_value": %s`, host, port), 1)
	w.check(os.WriteFile(file, b, 0o600))
}
