package main

import (
	"fmt"
	"testing"
)

func TestTheProbeOfAFlagComesBeforeThatOfIstio(t *testing.T) {
	w := &workloadFlags{text: "tcp://127.0.0.1:5432"}
	if err := w.parse(newCommand("run", "", "", "")); err != nil {
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
