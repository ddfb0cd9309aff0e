package admin

import (
	"net/http"
	"testing"
)

type istioPaths struct{}

func (istioPaths) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /app-health/", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusTeapot, "") })
}

// The paths of pilot-agent are served on the health listener only, and only if there is an Istio.
func TestPilotAgentsPathsAreOnTheHealthListenerOnly(t *testing.T) {
	state := &agent{}
	with, without := server(t, Config{State: state, Istio: istioPaths{}}), server(t, Config{State: state})
	for _, tc := range []struct {
		path                 string
		with, without, admin int
	}{
		{"/healthz/ready", 200, 404, 404},
		{"/app-health/app/livez", http.StatusTeapot, 404, 404},
		{"/readyz", 200, 200, 200},
		{"/metrics", 200, 200, 200},
	} {
		for name, got := range map[string][2]int{
			"with":    {ask(with.forKubelet(), "GET", tc.path).Code, tc.with},
			"without": {ask(without.forKubelet(), "GET", tc.path).Code, tc.without},
			"admin":   {ask(with.full(true), "GET", tc.path).Code, tc.admin},
		} {
			if got[0] != got[1] {
				t.Errorf("%s: %s: %d, want %d", name, tc.path, got[0], got[1])
			}
		}
	}
	state.ready = []Condition{{Name: "upstream", Reason: "away"}}
	if got := ask(with.forKubelet(), "GET", "/healthz/ready"); got.Code != 503 || got.Body.String() != "upstream: away\n" {
		t.Errorf("not ready: %d %q", got.Code, got.Body)
	}
}
