package inject

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// meshes are containers of other meshes by their names.
var meshes = map[string]string{
	"istio-proxy": "Istio", "istio-init": "Istio", "istio-validation": "Istio",
	"linkerd-proxy": "Linkerd", "linkerd-init": "Linkerd", "linkerd-network-validator": "Linkerd",
	"consul-dataplane": "Consul", "consul-connect-inject-init": "Consul", "consul-sidecar": "Consul",
	"kuma-sidecar": "Kuma", "kuma-init": "Kuma", "osm-init": "Open Service Mesh",
}

// meshMarks are labels and annotations with which a pod is, or is to be, in another mesh. A value of "" stands for any.
var meshMarks = []struct{ key, value, mesh string }{
	{"sidecar.istio.io/status", "", "Istio"}, {"sidecar.istio.io/inject", "true", "Istio"}, {"istio.io/rev", "", "Istio"},
	{"linkerd.io/inject", "enabled", "Linkerd"}, {"linkerd.io/inject", "ingress", "Linkerd"}, {"linkerd.io/proxy-version", "", "Linkerd"},
	{"consul.hashicorp.com/connect-inject", "true", "Consul"}, {"consul.hashicorp.com/connect-inject-status", "", "Consul"},
	{"kuma.io/sidecar-injection", "enabled", "Kuma"}, {"kuma.io/sidecar-injection", "true", "Kuma"}, {"kuma.io/sidecar-injected", "", "Kuma"},
}

// ports are those of the sidecars, with what listens there.
var ports = map[string]string{"15000": "Envoy's admin interface", "15020": "holdfast", "15021": "Envoy's readiness", "15090": "Envoy's metrics"}

// refuse returns why a template that is not injected cannot be, nil if it can.
func refuse(template *yaml.Node) error {
	metadata, spec := yamledit.Value(template, "metadata"), yamledit.Value(template, "spec")
	if spec == nil || spec.Kind != yaml.MappingNode {
		return errors.New("it has no pod spec: add one with containers")
	}
	if containers := yamledit.Value(spec, "containers"); containers == nil || containers.Kind != yaml.SequenceNode || len(containers.Content) == 0 {
		return errors.New("its pod has no containers: add one")
	}
	for _, check := range []func(metadata, spec *yaml.Node) error{
		refuseAnnotations, refuseLists, refusePlatform, refuseMesh, refuseRole, refuseNames, refusePorts,
	} {
		if err := check(metadata, spec); err != nil {
			return err
		}
	}
	return nil
}

// maxName is how long Kubernetes allows the names of containers and volumes to be.
const maxName = 63

// refuseLists refuses what is no list of mappings where Kubernetes has one.
func refuseLists(_, spec *yaml.Node) error {
	for _, key := range []string{"initContainers", "containers", "volumes", "ephemeralContainers"} {
		v := yamledit.Value(spec, key)
		if yamledit.IsNull(v) {
			continue
		}
		if v.Kind != yaml.SequenceNode {
			return fmt.Errorf("spec.%s is not a list: make it one", key)
		}
		seen := make(map[string]bool)
		for _, c := range list(spec, key) {
			name := text(c, "name")
			if c == nil || c.Kind != yaml.MappingNode || name == "" {
				return fmt.Errorf("spec.%s has an element without a name: give it one", key)
			}
			if len(name) > maxName {
				return fmt.Errorf("spec.%s has an element with a name of %d characters: Kubernetes allows %d", key, len(name), maxName)
			}
			if seen[name] {
				return fmt.Errorf("spec.%s has two elements with the name %q: rename one of both", key, name)
			}
			seen[name] = true
		}
	}
	return nil
}

func refusePlatform(metadata, spec *yaml.Node) error {
	switch {
	case isTrue(spec, "hostNetwork"):
		return errors.New("its pod is in the network of the node (hostNetwork: true), where the ports of Envoy would be the node's: remove hostNetwork, or leave the pod alone with the annotation holdfast.dev/inject: \"false\"")
	case isText(yamledit.Value(spec, "os"), "name", "windows"), isText(yamledit.Value(spec, "nodeSelector"), "kubernetes.io/os", "windows"),
		isText(yamledit.Value(spec, "nodeSelector"), "beta.kubernetes.io/os", "windows"), requiresWindows(spec):
		return errors.New("its pod is for nodes with Windows, for which there is no holdfast: leave it alone with the annotation holdfast.dev/inject: \"false\"")
	}
	annotations := yamledit.Value(metadata, "annotations")
	for _, key := range []string{"kubernetes.io/config.source", "kubernetes.io/config.mirror"} {
		if source := text(annotations, key); source != "" && source != "api" {
			return errors.New("it is a static pod, which gets no token for a control plane: use a DaemonSet instead")
		}
	}
	for _, owner := range list(metadata, "ownerReferences") {
		if text(owner, "kind") == "Node" {
			return errors.New("it is a static pod, which gets no token for a control plane: use a DaemonSet instead")
		}
	}
	return nil
}

// requiresWindows reports whether the affinity of a pod excludes all but nodes with Windows.
func requiresWindows(spec *yaml.Node) bool {
	required := yamledit.Value(yamledit.Value(yamledit.Value(spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
	for _, term := range list(required, "nodeSelectorTerms") {
		for _, e := range list(term, "matchExpressions") {
			values := list(e, "values")
			if text(e, "key") == "kubernetes.io/os" && text(e, "operator") == "In" && len(values) == 1 && values[0].Value == "windows" {
				return true
			}
		}
	}
	return false
}

func refuseMesh(metadata, spec *yaml.Node) error {
	for _, key := range []string{"initContainers", "containers"} {
		for _, c := range list(spec, key) {
			if mesh := meshes[text(c, "name")]; mesh != "" {
				return fmt.Errorf("its container %s is the sidecar of %s: remove that first, since two sidecars would both want the pod's traffic", text(c, "name"), mesh)
			}
		}
	}
	for _, key := range []string{"labels", "annotations"} {
		of := yamledit.Value(metadata, key)
		for _, mark := range meshMarks {
			if value := text(of, mark.key); value != "" && (mark.value == "" || mark.value == value) {
				return fmt.Errorf("its %s %s: %q is for the sidecar of %s, which would be injected or is there: remove it first", strings.TrimSuffix(key, "s"), mark.key, value, mark.mesh)
			}
		}
	}
	return nil
}

func refuseRole(metadata, _ *yaml.Node) error {
	labels := yamledit.Value(metadata, "labels")
	switch shape := text(labels, shapeLabel); {
	case shape == "gateway":
		return errors.New("it is a gateway (label holdfast.dev/shape: gateway), which has Envoy already: use deploy/overlays/gateway")
	case shape != "" && shape != "sidecar":
		return fmt.Errorf("its label %s is %q, by which alerts and components find pods: remove it", shapeLabel, shape)
	}
	if templates := text(yamledit.Value(metadata, "annotations"), "inject.istio.io/templates"); strings.Contains(templates, "gateway") {
		return errors.New("it is a gateway of Istio (annotation inject.istio.io/templates): see docs/istio.md")
	}
	return nil
}

func refuseNames(_, spec *yaml.Node) error {
	for _, key := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for _, c := range list(spec, key) {
			switch name := text(c, "name"); name {
			case "holdfast":
				return errors.New("it has a container holdfast already, which `holdfast inject` did not add: remove what was added by hand, or leave the pod alone with the annotation holdfast.dev/inject: \"false\"")
			case "bootstrap", "envoy":
				return fmt.Errorf("its container %s has the name of one that would be added: rename it", name)
			}
		}
	}
	return nil
}

func refusePorts(_, spec *yaml.Node) error {
	for _, key := range []string{"initContainers", "containers"} {
		for _, c := range list(spec, key) {
			for _, p := range list(c, "ports") {
				port := text(p, "containerPort")
				var n int64 // it may be written as 0x3a98
				if v := yamledit.Value(p, "containerPort"); v != nil && v.Decode(&n) == nil {
					port = strconv.FormatInt(n, 10)
				}
				if what := ports[port]; what != "" && !slices.Contains([]string{"UDP", "SCTP"}, text(p, "protocol")) {
					return fmt.Errorf("its container %s listens on port %s, which is that of %s: use another port", text(c, "name"), port, what)
				}
			}
		}
	}
	return nil
}
