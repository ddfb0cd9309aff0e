package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestTheProbeOfAFlagComesBeforeThatOfIstio(t *testing.T) {
	w := &workloadFlags{text: "tcp://127.0.0.1:5432"}
	if err := w.parse(newCommand("run", "", "", ""), []string{"file:/x", "a:1"}); err != nil {
		t.Fatal(err)
	}
	env := func(name string) string {
		return map[string]string{"PROXY_CONFIG": "readinessProbe: {grpc: {port: 9000}}"}[name]
	}
	for _, tc := range []struct {
		flags *workloadFlags
		istio bool
		want  string
	}{{w, true, "tcp://127.0.0.1:5432"}, {&workloadFlags{}, true, "grpc://localhost:9000"}, {&workloadFlags{}, false, "<nil>"}} {
		cfg, err := tc.flags.config(tc.istio, nil, env)
		if err != nil {
			t.Fatal(err)
		}
		got := "<nil>"
		if cfg != nil {
			got = fmt.Sprint(cfg.Check)
		}
		if got != tc.want {
			t.Errorf("%s, want %s", got, tc.want)
		}
	}
}

func TestAProbeNeedsAControlPlaneWithAStream(t *testing.T) {
	w := &workloadFlags{text: "tcp://127.0.0.1:5432"}
	for _, upstreams := range [][]string{nil, {"file:/x"}, {"http://a", "https://b"}} {
		if err := w.parse(newCommand("run", "", "", ""), upstreams); err == nil || !strings.Contains(err.Error(), "--workload-probe needs an --upstream") {
			t.Errorf("%v: error %v", upstreams, err)
		}
	}
}
