package mesh

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// put stores a VirtualService of a host.
func put(t *testing.T, store *config.Memory, name string) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: shop}\nspec: {hosts: [a.test], http: [{directResponse: {status: 200}}]}\n", name)
	documents, broken := config.Read("documents.yaml", []byte(text))
	if broken != nil || documents[0].Config == nil {
		t.Fatal(broken, documents)
	}
	if _, err := store.Create(t.Context(), documents[0].Config); err != nil {
		t.Fatal(err)
	}
}

// series returns the number of warnings with a code, or that of errors for "".
func series(t *testing.T, registry *prometheus.Registry, code string) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if len(m.GetLabel()) == 0 && code == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == code {
				n += m.GetGauge().GetValue()
			}
		}
	}
	return n
}

// A running server says what `holdfast-mesh validate` says of documents beside each other: at once to who asks, and after a while, once, in
// its log and by a metric. A change of documents does not wait until the others have been looked at.
func TestWarnings_AreThoseOfTheDocumentsThatThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		store := config.NewMemory()
		registry := prometheus.NewRegistry()
		own := []config.Problem{{Message: "an error"}, {Code: config.NoEffect, Severity: config.SeverityWarning}, {Code: config.LargeBody, Severity: config.SeverityWarning, Suppressed: true}}
		w := newWarnings(store, func() []config.Problem { return own }, config.DefaultDomain, registry, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{}, 2)
		go func() {
			_ = store.Run(ctx)
			ended <- struct{}{}
		}()
		go func() {
			w.Run(ctx)
			ended <- struct{}{}
		}()
		put(t, store, "one")
		synctest.Wait()
		if found := w.current(); len(found.Problems) != 0 || len(w.about("a.test")) != 0 {
			t.Errorf("%v", found.Problems)
		}
		put(t, store, "two")
		synctest.Wait()
		found := w.current().Problems
		if len(found) != 1 || found[0].Severity != config.SeverityWarning || !strings.HasPrefix(found[0].String(), "documents.yaml:1: VirtualService shop/two: spec.hosts[0]: warning: VirtualService shop/one (documents.yaml:1) has the host") {
			t.Errorf("%v", found)
		}
		if said := w.about("A.test."); len(said) != 1 || !strings.Contains(said[0], "shop/two") || !strings.Contains(said[0], "shop/one") || len(w.about("b.test")) != 0 {
			t.Errorf("%q", said)
		}
		time.Sleep(3 * warnEvery)
		synctest.Wait()
		if n := strings.Count(log.String(), "document used with a warning"); n != 1 || !strings.Contains(log.String(), " code=HM0402 ") {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
		var counted strings.Builder
		for _, code := range config.Codes {
			if n := series(t, registry, string(code.Code)); n != 0 {
				fmt.Fprintf(&counted, "%s %v ", code.Code, n)
			}
		}
		if got := counted.String() + fmt.Sprint(series(t, registry, "")); got != "HM0102 1 HM0402 1 1" {
			t.Errorf("the metrics say %q", got)
		}

		w.mu.Lock() // while documents are looked at
		put(t, store, "three")
		synctest.Wait()
		stale := w.stale.Load()
		w.mu.Unlock()
		if found := w.current().Problems; !stale || len(found) != 2 {
			t.Errorf("the change has waited, or is not seen: %t, %v", stale, found)
		}
		stop()
		<-ended
		<-ended
	})
}
