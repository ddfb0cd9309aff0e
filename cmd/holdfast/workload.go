package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/istio"
	"github.com/holdfast-xds/holdfast/agent/probe"
)

// workloadFlags are the flags of the probe of the application.
type workloadFlags struct {
	text string
	cfg  probe.Config
}

// minProbePeriod is the shortest time between two probes: control planes take in a change each second.
const minProbePeriod = time.Second

func (w *workloadFlags) add(c *command) {
	flags := c.section("Health of the workload (of an application that registers with a WorkloadGroup of Istio or holdfast-mesh)")
	flags.StringVar(&w.text, "workload-probe", "", "probe the application, and report to the control plane whether it is healthy (type istio.v1.HealthInformation, which istiod and holdfast-mesh know): `PROBE` is http://HOST:PORT/PATH, https://… without verification of the certificate, tcp://HOST:PORT, grpc://HOST:PORT[/SERVICE] for gRPC's health service, or exec:COMMAND, which is run without a shell. Empty: none, or with --istio the readinessProbe of Istio's ProxyConfig")
	flags.Var(numberOf(&w.cfg.Period, probe.DefaultPeriod, bounds{min: int64(minProbePeriod)}), "workload-probe-period", "time from one probe until the next one (`DURATION`, at least 1s)")
	flags.Var(numberOf(&w.cfg.Timeout, probe.DefaultTimeout, positive), "workload-probe-timeout", "a probe that takes longer than this `DURATION` has failed")
	flags.Var(numberOf(&w.cfg.Failures, probe.DefaultFailures, positive), "workload-probe-failures", "`NUMBER` of probes in a row that must fail until the workload is unhealthy")
	flags.Var(numberOf(&w.cfg.Successes, probe.DefaultSuccesses, positive), "workload-probe-successes", "`NUMBER` of probes in a row that must succeed until the workload is healthy")
}

// parse reads what to probe. Only control planes with a stream are told the result.
func (w *workloadFlags) parse(c *command, upstreams []string) (err error) {
	if w.text == "" {
		for _, name := range []string{"period", "timeout", "failures", "successes"} {
			if c.given("workload-probe-" + name) {
				return fmt.Errorf("--workload-probe-%s needs --workload-probe", name)
			}
		}
		return nil
	}
	if w.cfg.Check, err = probe.Parse(w.text); err != nil {
		return fmt.Errorf("--workload-probe: %w", err)
	}
	if !slices.ContainsFunc(upstreams, hasStream) {
		return errors.New("--workload-probe needs an --upstream that is told the health of the workload on its stream: host:port, unix:PATH or dns:///HOST:PORT")
	}
	return nil
}

// hasStream reports whether an upstream is an ADS server.
func hasStream(addr string) bool {
	for _, prefix := range []string{"file:", "http://", "https://"} {
		if strings.HasPrefix(addr, prefix) {
			return false
		}
	}
	return true
}

// config returns the probe of the application; nil for none. node may be nil.
func (w *workloadFlags) config(inIstio bool, node *corev3.Node, getenv func(string) string) (*probe.Config, error) {
	if !w.cfg.Check.IsZero() {
		return &w.cfg, nil
	}
	if !inIstio {
		return nil, nil
	}
	cfg, err := istio.WorkloadProbe(node, getenv)
	if err != nil {
		return nil, fmt.Errorf("--istio: %w", err)
	}
	return cfg, nil
}
