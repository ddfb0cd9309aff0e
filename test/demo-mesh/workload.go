package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// workload is a proxy with its agent, and the application behind it, if it has one.
type workload struct {
	name, kind, app, version string // kind is the TYPE of the node
	port                     int    // on which the proxy takes requests for the application
	agent                    *testbed.Process
	envoy                    *testbed.Envoy
}

// Name, Version and Port are used by the documents.
func (w *workload) Name() string    { return w.name }
func (w *workload) Version() string { return w.version }
func (w *workload) Port() int       { return w.port }

// prepareWorkloads starts the applications, and writes the documents.
func (d *demo) prepareWorkloads() error {
	type sidecar struct {
		*workload
		Application string
	}
	var sidecars []sidecar
	var endpoints []endpoint
	for _, w := range []*workload{{name: "v1-a", version: "v1"}, {name: "v1-b", version: "v1"}, {name: "v2", version: "v2"}} {
		w.kind, w.app = "sidecar", "web"
		b, err := testbed.StartBackend("127.0.0.1:0", w.name)
		if err != nil {
			return err
		}
		d.cleanup = append(d.cleanup, b.Stop)
		if w.port, err = testbed.FreePort(); err != nil {
			return err
		}
		sidecars = append(sidecars, sidecar{w, b.Addr})
		endpoints = append(endpoints, endpoint{w.port, w.version})
		d.workloads = append(d.workloads, w)
	}
	d.workloads = append(d.workloads, &workload{name: "client", kind: "sidecar", app: "client"}, &workload{name: "gateway", kind: "router", app: "edge"})
	for _, write := range []func() error{
		func() error { return d.web(endpoints...) },
		func() error { return d.write("sidecars", map[string]any{"Workloads": sidecars}) },
		func() error { return d.write("gateway", map[string]any{"Edge": d.edge}) },
		func() error { return d.route(100, 0, false) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// startAgent writes the bootstrap of a workload, and starts its agent.
func (d *demo) startAgent(w *workload) error {
	dir := d.path(w.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	bootstrap := []string{"bootstrap", "--out", dir + "/envoy.yaml", "--node-id", w.name, "--node-cluster", w.app,
		"--node-metadata", "TYPE=" + w.kind, "--node-metadata", "NAMESPACE=shop", "--node-metadata", "INTERCEPTION_MODE=NONE",
		"--node-metadata", fmt.Sprintf(`LABELS:={"app": %q, "version": %q, "instance": %q}`, w.app, w.version, w.name),
		"--socket", dir + "/xds.sock", "--envoy-admin", "unix:" + dir + "/envoy.sock"}
	if out, err := exec.Command(d.holdfast, bootstrap...).CombinedOutput(); err != nil {
		return fmt.Errorf("holdfast bootstrap: %w\n%s", err, out)
	}
	var err error
	w.agent, err = d.start(w.name+"-agent", d.holdfast, "run", "--upstream", d.xds, "--upstream-plaintext", "--upstream-protocol", "delta",
		"--bootstrap", dir+"/envoy.yaml", "--socket", dir+"/xds.sock", "--state-dir", dir+"/state", "--admin", "unix:"+dir+"/admin.sock", "--health", "")
	if err != nil {
		return err
	}
	return w.agent.Wait(limit, func() error { return testbed.Dial("unix", dir+"/xds.sock") })
}

// startEnvoy starts the Envoy of a workload, and does not wait for it.
func (d *demo) startEnvoy(w *workload) error {
	var err error
	w.envoy, err = testbed.StartEnvoy(d.envoyBin, d.path(w.name)+"/envoy.yaml", "", d.path(w.name+"-envoy.log"))
	if err == nil {
		d.cleanup = append(d.cleanup, w.envoy.Kill)
	}
	return err
}

// alive returns an error if the agent or Envoy has ended.
func (w *workload) alive() error {
	if err := w.agent.Alive(); err != nil {
		return err
	}
	return w.envoy.Alive()
}

// kill kills the agent and Envoy.
func (w *workload) kill() {
	w.agent.Kill()
	w.envoy.Kill()
}
