package envoy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestEnvoysMetricsAreRequestedFromItsAdminInterface(t *testing.T) {
	long := strings.Repeat("a 1\n", maxResponse/4+1) // longer than other answers may be
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/stats/prometheus?usedonly&filter=x" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, long)
	}))
	defer srv.Close()
	resp, err := NewAdmin(strings.TrimPrefix(srv.URL, "http://")).Prometheus(t.Context(), "usedonly&filter=x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || string(body) != long {
		t.Errorf("%d, %d bytes of %d, %v", resp.StatusCode, len(body), len(long), err)
	}
	if _, err := NewAdmin("unix:/does/not/exist").Prometheus(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "the admin interface of Envoy at unix:/does/not/exist") {
		t.Error(err)
	}
}
