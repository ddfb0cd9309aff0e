package main

import (
	"cmp"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/bootstrap/istio"
)

// istioFlags are the flags of a proxy into whose pod Istio's webhook injected holdfast.
type istioFlags struct {
	on    bool
	role  istio.Role
	proxy *istio.Proxy // nil until read
}

func (i *istioFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&i.on, "istio", false, "write what istiod expects of a proxy that its webhook injected: node, metadata, stats and runtime from ISTIO_META_…, PROXY_CONFIG and other variables of the webhook, and from the labels and annotations of the pod. Unless they are given, --ready-listen is :15021, --stats-listen :15090, --pod-labels "+istio.LabelsFile+" and --pod-annotations "+istio.AnnotationsFile)
	flags.Var(oneOf(&i.role, istio.Sidecar, istio.Router), "istio-role", "role of the proxy in the node id: router for a gateway")
}

// setDefaults sets the defaults of other flags that --istio changes.
func (i *istioFlags) setDefaults(f *bootstrapFlags) {
	if !i.on {
		return
	}
	if !f.given("stats-default-tags") {
		f.defaultTags = false
	}
	f.identity.labels = cmp.Or(f.identity.labels, existing(istio.LabelsFile))
	f.identity.annotations = cmp.Or(f.identity.annotations, existing(istio.AnnotationsFile))
}

// existing returns the path of a file, "" if there is none. Outside of a pod of the webhook there is none.
func existing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// read returns the identity that istiod expects, and completes the configuration of f.
func (i *istioFlags) read(f *bootstrapFlags, id bootstrap.Identity) (_ bootstrap.Identity, err error) {
	if !i.on {
		return id, nil
	}
	if i.proxy, err = istio.Read(i.role, id); err != nil {
		return id, err
	}
	for _, warning := range i.proxy.Warnings() {
		f.warn(warning)
	}
	endpoints, err := i.proxy.Endpoints()
	if err != nil {
		return id, err
	}
	if !f.given("ready-listen") {
		f.cfg.Endpoints.Ready = endpoints.Ready
	}
	if !f.given("stats-listen") {
		f.cfg.Endpoints.Stats = endpoints.Stats
	}
	if f.cfg, f.args, err = i.proxy.Configure(f.cfg, f.args); err != nil {
		return id, err
	}
	return i.proxy.Identity(f.cfg)
}

// drain returns how long a drain takes at most by Istio's ProxyConfig, and whether that says so.
func (i *istioFlags) drain() (drain time.Duration, given bool) {
	if i.proxy == nil {
		return 0, false
	}
	return i.proxy.TerminationDrain()
}
