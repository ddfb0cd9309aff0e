package dial

import (
	"strings"
	"testing"
)

func TestAnAddressIsATarget(t *testing.T) {
	for addr, want := range map[string]string{
		"xds.test:443":         "dns:///xds.test:443",
		"192.0.2.1:15010":      "passthrough:///192.0.2.1:15010",
		"[2001:db8::1]:443":    "passthrough:///[2001:db8::1]:443",
		"unix:/run/cp.sock":    "unix:/run/cp.sock",
		"unix:///run/cp.sock":  "unix:/run/cp.sock",
		"unix:cp.sock":         "unix:cp.sock",
		"dns:///xds.test:443":  "dns:///xds.test:443",
		"dns:xds.test:443":     "dns:xds.test:443",
		"dns://192.0.2.1/a:53": "dns://192.0.2.1/a:53",
	} {
		got, unix, err := Target("server", "an address", addr)
		if err != nil || got != want || unix != (addr[:4] == "unix") {
			t.Errorf("%s: target %q, Unix socket %v, %v; want %q", addr, got, unix, err, want)
		}
	}
}

// Each side of the agent has flags of its own, and calls the server by its own name.
func TestErrorsNameTheFlagsAndTheServerThatAreMeant(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"an upstream's flags", Security{Cert: "c"}.Check(), "--upstream-cert and --upstream-key go together"},
		{"another's flags", Security{Flags: "istio", Cert: "c"}.Check(), "--istio-cert and --istio-key go together"},
		{"another's plaintext", Security{Flags: "istio", Plaintext: true, CA: "x"}.Check(), "--istio-ca has no meaning with --istio-plaintext"},
		{"an address", second(Target("CA", "host:port", "x")), `CA "x": want host:port`},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, tc.err, tc.want)
		}
	}
}

func second(_ string, _ bool, err error) error { return err }
