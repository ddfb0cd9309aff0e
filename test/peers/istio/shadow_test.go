package istio

import (
	"flag"
	"os/exec"
	"strings"
	"testing"
)

var shadowAll = flag.Bool("shadow", false, "compare each Envoy with what an agent would serve it, and not only that of istiod for the first group of each file")

// shadows fails if `holdfast shadow` finds that an Envoy has something else of a control plane than an agent would serve it. certs
// is the directory of the certificate with which the Envoy authenticates itself, "" for none.
func shadows(t *testing.T, e *envoy, name, xds, certs string) {
	t.Helper()
	flags := []string{"shadow", "--once", "--envoy-admin", e.admin, "--upstream", xds, "--log-level", "error", "--grace", "20s", "--timeout", "40s"}
	if certs == "" {
		flags = append(flags, "--upstream-plaintext")
	} else {
		flags = append(flags, "--upstream-ca", certs+"/ca.pem", "--upstream-server-name", "gateway.test", "--upstream-cert", certs+"/workload.pem", "--upstream-key", certs+"/workload.key")
	}
	out, err := exec.Command(agentBinary, flags...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Envoy has what it would be served.") {
		t.Errorf("a shadow of the Envoy of %s: %v\n%s", name, err, out)
	}
}
