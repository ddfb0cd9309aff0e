package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// explains waits until `holdfast explain` prints all of the given texts.
func (w *world) explains(argument string, texts ...string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		code, out := run(w.T, "explain", "--admin", "unix:"+w.path("admin.sock"), argument)
		for _, text := range texts {
			if code != 0 || !strings.Contains(out, text) {
				return fmt.Errorf("exit code %d, explain %s lacks %q:\n%s", code, argument, text, out)
			}
		}
		return nil
	}))
}

// What explain says of a request is what Envoy answers.
func TestExplainSaysWhatEnvoyAnswers(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--admin", "unix:"+w.path("admin.sock"))
		at := fmt.Sprintf("shop.example:%d", w.port)
		answers := func(status int, texts ...string) {
			w.Helper()
			w.check(w.envoy.Wait(limit, func() error {
				got, _, err := testbed.Request{URL: w.url, Host: at}.Get()
				if err == nil && got != status {
					err = fmt.Errorf("Envoy answers %d, want %d", got, status)
				}
				return err
			}))
			w.explains(at, texts...)
		}
		answers(http.StatusOK, "listener", "virtual host", "by its domain *", "→ the request goes to the cluster c1")
		w.explains("https://"+at, "→ the connection fails: the filter chain has no TLS, and the request is https")
		if _, _, err := testbed.Get(strings.Replace(w.url, "http:", "https:", 1)); err == nil {
			w.Error("Envoy takes https")
		}
		w.explains("LDS/ingress", "LDS/ingress", " since 20", "RDS/ingress", "CDS/c1", "EDS/c1")
		w.explains("CDS/c1", "EDS/c1", "named by RDS/ingress")

		w.cp.Set(xdstest.Route("ingress", "gone"))
		answers(http.StatusServiceUnavailable, "→ 503: the cluster gone is not known")
		w.explains("", "RDS/ingress names CDS/gone, which is not known", "virtual_hosts[0].routes[0].route.cluster")
		code, out := run(w.T, "status", "--check", "--admin", "unix:"+w.path("admin.sock"))
		if want := "RDS ingress leads to the cluster gone, which the control plane did not send"; code != 1 || strings.Count(out, want) != 2 {
			w.Errorf("status --check exits with %d and has not twice %q:\n%s", code, want, out)
		}

		w.cp.Set(xdstest.Route("ingress", "c1"), xdstest.CLA("c1"))
		answers(http.StatusServiceUnavailable, "→ 503: the cluster c1 has no endpoints")
		if code, out := run(w.T, "status", "--check", "--admin", "unix:"+w.path("admin.sock")); code != 0 {
			w.Errorf("status --check exits with %d:\n%s", code, out)
		}

		only := xdstest.Route("ingress", "c1")
		only.VirtualHosts[0].Domains = []string{"other.example"}
		w.cp.Set(only, xdstest.CLA("c1", w.v1.Addr))
		answers(http.StatusNotFound, `→ 404: no virtual host of the route configuration has the host "`+at)

		teapot := xdstest.Route("ingress", "c1")
		teapot.VirtualHosts[0].Routes = []*routev3.Route{
			{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: "/tea"}}, Action: teapot.VirtualHosts[0].Routes[0].Action},
			{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: http.StatusTeapot}}},
		}
		w.cp.Set(teapot)
		answers(http.StatusTeapot, `passed over`, `the path "/" is not "/tea"`, "→ 418: the route answers itself")
		w.explains(at+"/tea?sugar=2", "→ the request goes to the cluster c1")

		w.cp.Set(xdstest.BadListener("bad"))
		w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
		w.explains("LDS/bad", "rejected", "Envoy NACKed it: ", "not-an-ip", "subscribed to by\n  stream ", ", socket, "+string(w.below), "lately\n  20", "WARN ")
	})
}

func TestExplainSaysWhatIsWrongWithAQuestion(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--admin", "unix:"+w.path("admin.sock"))
		for _, tc := range []struct {
			args []string
			want string
		}{
			{[]string{"CDS/other"}, "there is no CDS/other: `holdfast dump --type CDS` lists the names"},
			{[]string{"CDS"}, `"CDS" has no name: want CDS/NAME`},
			{[]string{"ftp://shop"}, `want a URL with http or https`},
			{[]string{"shop:70000"}, `port "70000": want 1 to 65535`},
			{[]string{"shop:x/a"}, `port "x": want 1 to 65535`},
			{[]string{"shop/a b"}, `has white space or control characters`},
			{[]string{"/a"}, `has no host`},
			{[]string{"shop", "--header", "x"}, `header "x": want NAME:VALUE`},
			{[]string{"shop", "--node", "other"}, "the agent has no resources for such clients"},
			{[]string{"shop", "other"}, "2 arguments are too many"},
		} {
			code, out := run(w.T, append([]string{"explain", "--admin", "unix:" + w.path("admin.sock")}, tc.args...)...)
			if code == 0 || !strings.Contains(out, tc.want) {
				w.Errorf("explain %q exits with %d and says\n%s\nwant %s", tc.args, code, out, tc.want)
			}
		}
	})
}

func TestTheLevelOfTheLogChangesWhileTheAgentRuns(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--admin", "unix:"+w.path("admin.sock"), "--log-level", "info")
		for _, level := range []string{"debug", "warn"} {
			code, out := run(w.T, "loglevel", "--admin", "unix:"+w.path("admin.sock"), level)
			if code != 0 || !strings.Contains(out, "the log level is "+level+", and was ") {
				w.Errorf("loglevel %s exits with %d and says %q", level, code, out)
			}
			responses := func() int { return strings.Count(w.log(), "level=DEBUG msg=response") }
			before := responses()
			w.cp.Set(xdstest.Route("ingress", map[string]string{"debug": "c2", "warn": "c1"}[level]))
			w.serves(map[string]string{"debug": "v2", "warn": "v1"}[level])
			if level == "debug" {
				w.check(w.agent.Wait(limit, func() error {
					if responses() == before {
						return errors.New("at the level debug, no responses are logged")
					}
					return nil
				}))
				continue
			}
			if after := responses(); after > before {
				w.Errorf("at the level %s, %d responses are logged", level, after-before)
			}
		}
		if code, out := run(w.T, "loglevel", "--admin", "unix:"+w.path("admin.sock"), "loud"); code != 2 || !strings.Contains(out, "want one of debug, info, warn, error") {
			w.Errorf("loglevel loud exits with %d and says %q", code, out)
		}
	})
}
