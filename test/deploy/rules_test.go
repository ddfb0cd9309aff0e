package deploy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// containers returns all of a pod, those that come first first.
func containers(pod corev1.PodSpec) []corev1.Container {
	return append(slices.Clone(pod.InitContainers), pod.Containers...)
}

// always reports whether a container lives as long as the pod.
func always(pod corev1.PodSpec, c corev1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	return slices.ContainsFunc(pod.Containers, func(o corev1.Container) bool { return o.Name == c.Name })
}

// isHoldfast reports whether a container runs the image's entrypoint.
func isHoldfast(c corev1.Container) bool {
	name, _, _ := strings.Cut(c.Image, ":")
	return name == "holdfast" || name == "holdfast-envoy"
}

// runs reports whether a container is the agent.
func runs(c corev1.Container) bool { return isHoldfast(c) && len(c.Args) > 0 && c.Args[0] == "run" }

// restricted returns what keeps a container from being one of the Pod Security Standard
// "restricted" with a root directory that nobody can write to.
func restricted(c corev1.Container) (problems []string) {
	want := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, problem)
		}
	}
	s := c.SecurityContext
	if s == nil {
		return []string{"no securityContext"}
	}
	yes := func(b *bool) bool { return b != nil && *b }
	want(yes(s.RunAsNonRoot), "runAsNonRoot is not true")
	want(s.RunAsUser != nil && *s.RunAsUser > 0, "runAsUser is not set, or root")
	want(s.RunAsGroup != nil && *s.RunAsGroup > 0, "runAsGroup is not set, or root")
	want(yes(s.ReadOnlyRootFilesystem), "readOnlyRootFilesystem is not true")
	want(s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation, "allowPrivilegeEscalation is not false")
	want(!yes(s.Privileged), "privileged")
	want(s.Capabilities != nil && len(s.Capabilities.Add) == 0 && slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}), "capabilities are not all dropped")
	want(s.SeccompProfile != nil && s.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "seccompProfile is not RuntimeDefault")
	return problems
}

// lookedAfter returns what is missing in how a container is run.
func lookedAfter(c corev1.Container) (problems []string) {
	want := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, problem)
		}
	}
	requests, limits := c.Resources.Requests, c.Resources.Limits
	want(!requests.Cpu().IsZero() && !requests.Memory().IsZero(), "resources.requests lack cpu or memory")
	want(!limits.Memory().IsZero(), "resources.limits lack memory")
	want(requests.Memory().Cmp(*limits.Memory()) <= 0, "requests more memory than its limit")
	image, tag, pinned := cutTag(c.Image)
	want(pinned && tag != "latest" && image != "", fmt.Sprintf("image %s is not pinned by a tag", c.Image))
	return problems
}

// cutTag splits the tag from the name of an image, whose host may have a port.
func cutTag(image string) (name, tag string, ok bool) {
	at := strings.LastIndexByte(image, ':')
	if at < 0 || strings.ContainsRune(image[at:], '/') {
		return image, "", false
	}
	return image[:at], image[at+1:], true
}

func TestPodsAreRestrictedAndLookedAfter(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		for _, c := range containers(pod) {
			for _, problem := range append(restricted(c), lookedAfter(c)...) {
				t.Errorf("%s: container %s: %s", d.name, c.Name, problem)
			}
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: the pod gets a token for Kubernetes, which nobody needs", d.name)
		}
		if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
			t.Errorf("%s: enableServiceLinks is not false: a Service called holdfast would make variables HOLDFAST_…", d.name)
		}
		if pod.HostNetwork || pod.HostPID || pod.HostIPC {
			t.Errorf("%s: the pod shares what is the node's", d.name)
		}
	}
}

func TestTheRulesCanFail(t *testing.T) {
	if len(restricted(corev1.Container{})) == 0 || len(restricted(corev1.Container{SecurityContext: &corev1.SecurityContext{}})) != 7 {
		t.Error("a container without a securityContext passes")
	}
	for _, image := range []string{"holdfast", "holdfast:latest", "localhost:5000/holdfast"} {
		if !slices.ContainsFunc(lookedAfter(corev1.Container{Image: image}), func(p string) bool { return strings.Contains(p, "pinned") }) {
			t.Errorf("image %s passes", image)
		}
	}
}

// ports of README.md.
const (
	healthPort  = 15020
	readyPort   = 15021
	metricsPort = 15090
	adminPort   = 15000 // on loopback
)

func TestProbesAskWhatIsThere(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		agents, envoys := 0, 0
		for _, c := range containers(pod) {
			ask := func(which string, p *corev1.Probe, path string, port int32) {
				t.Helper()
				switch {
				case p == nil || p.HTTPGet == nil:
					t.Errorf("%s: container %s has no %s probe", d.name, c.Name, which)
				case p.HTTPGet.Path != path || portOf(c, p) != port:
					t.Errorf("%s: container %s: the %s probe asks %d%s, want %d%s", d.name, c.Name, which, portOf(c, p), p.HTTPGet.Path, port, path)
				}
			}
			switch {
			case runs(c):
				agents++
				ask("startup", c.StartupProbe, "/startupz", healthPort)
				ask("liveness", c.LivenessProbe, "/livez", healthPort)
				ask("readiness", c.ReadinessProbe, "/readyz", healthPort)
				if !slices.Contains(c.Args, "--") {
					break
				}
				fallthrough
			case c.Name == "envoy":
				envoys++
				for name, port := range map[string]int32{"envoy-ready": readyPort, "envoy-metrics": metricsPort} {
					if !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name && p.ContainerPort == port }) {
						t.Errorf("%s: container %s has no port %s %d", d.name, c.Name, name, port)
					}
				}
			}
			if c.Name == "envoy" {
				ask("startup", c.StartupProbe, "/healthz/ready", readyPort)
				ask("readiness", c.ReadinessProbe, "/healthz/ready", readyPort)
			}
		}
		if agents != 1 || envoys != 1 {
			t.Errorf("%s: %d agents and %d Envoys, want one of each", d.name, agents, envoys)
		}
		// The ports that Envoy listens on are in its bootstrap, which the settings make.
		conf := d.settings(t)
		if conf["ready-listen"] != ":15021" || conf["stats-listen"] != ":15090" {
			t.Errorf("%s: Envoy's probes and metrics are on %v and %v", d.name, conf["ready-listen"], conf["stats-listen"])
		}
	}
}

// portOf returns the number of the port that a probe names.
func portOf(c corev1.Container, p *corev1.Probe) int32 {
	for _, port := range c.Ports {
		if port.Name == p.HTTPGet.Port.StrVal && port.Name != "" {
			return port.ContainerPort
		}
	}
	return p.HTTPGet.Port.IntVal
}

// settings returns the file of --config.
func (d deployment) settings(t *testing.T) map[string]any {
	t.Helper()
	var conf map[string]any
	text := d.config(t, configMap(d.pod(t).Spec.Template.Spec))["holdfast.yaml"]
	if injected, ok := d.pod(t).Spec.Template.Annotations["holdfast.dev/settings"]; ok {
		text = injected
	}
	if err := yaml.UnmarshalStrict([]byte(text), &conf); err != nil || len(conf) == 0 {
		t.Fatalf("%s: holdfast.yaml: %v", d.name, err)
	}
	return conf
}

// setting returns what a container takes a flag to be: of its arguments, its variables
// or the file, "" if none says it.
func (d deployment) setting(t *testing.T, c corev1.Container, flag string) string {
	t.Helper()
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--"+flag+"="); ok {
			return value
		}
	}
	for _, v := range c.Env {
		if v.Name == envName(flag) {
			return v.Value
		}
	}
	if value, ok := d.settings(t)[flag]; ok {
		return fmt.Sprint(value)
	}
	return ""
}

func envName(flag string) string {
	return "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func TestThePodHasTheTimeThatItsEndTakes(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
		for _, c := range pod.InitContainers {
			if sleep := preStopSleep(c); sleep > 0 {
				t.Errorf("%s: container %s sleeps before its end", d.name, c.Name)
			}
		}
		for _, c := range containers(pod) {
			if !runs(c) {
				continue
			}
			in := func(flag string) time.Duration {
				length, err := time.ParseDuration(d.setting(t, c, flag))
				if err != nil {
					t.Fatalf("%s: container %s: %s is not said: %v", d.name, c.Name, flag, err)
				}
				return length
			}
			least, most, kill := in("drain-min"), in("drain-timeout"), in("kill-after")
			// Five seconds for the agent itself.
			if need := max(least, most) + kill + 5*time.Second; grace <= need {
				t.Errorf("%s: terminationGracePeriodSeconds %s, and the end may take %s", d.name, grace, need)
			}
			if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Exec == nil ||
				!slices.Equal(c.Lifecycle.PreStop.Exec.Command, []string{entrypoint, "drain"}) {
				t.Errorf("%s: container %s: preStop is not `holdfast drain`", d.name, c.Name)
			}
			for _, app := range pod.Containers {
				if app.Name == "application" && preStopSleep(app) <= least {
					t.Errorf("%s: the application ends after %s, and Envoy sends it requests for %s at least", d.name, preStopSleep(app), least)
				}
			}
			envoy := slices.IndexFunc(pod.InitContainers, func(o corev1.Container) bool { return o.Name == "envoy" })
			if envoy < 0 {
				continue
			}
			args := pod.InitContainers[envoy].Args
			if at := slices.Index(args, "--drain-time-s"); at < 0 || args[at+1] != fmt.Sprint(int(most.Seconds())) {
				t.Errorf("%s: Envoy's --drain-time-s is not --drain-timeout, %s", d.name, most)
			}
		}
	}
}

func preStopSleep(c corev1.Container) time.Duration {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil {
		return 0
	}
	return time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
}

func TestSidecarsStartInOrder(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		var order []string
		for _, c := range containers(pod) {
			order = append(order, c.Name)
		}
		got := strings.Join(order, " ")
		switch got {
		case "bootstrap holdfast envoy application", "bootstrap holdfast application", "bootstrap holdfast":
		default:
			t.Errorf("%s: containers start in the order %s", d.name, got)
		}
		for _, c := range containers(pod) {
			if want := c.Name != "bootstrap"; always(pod, c) != want {
				t.Errorf("%s: container %s: lives as long as the pod: %t, want %t", d.name, c.Name, always(pod, c), want)
			}
		}
	}
}

func TestVolumesThatAreMountedExistAndAreMounted(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		unused := make(map[string]bool)
		for _, v := range pod.Volumes {
			unused[v.Name] = true
			if v.EmptyDir != nil && v.EmptyDir.SizeLimit == nil {
				t.Errorf("%s: volume %s may grow without limit", d.name, v.Name)
			}
			if memory := v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory; memory != slices.Contains([]string{"socket", "identity"}, v.Name) {
				t.Errorf("%s: volume %s: in memory: %t", d.name, v.Name, memory)
			}
		}
		known := make(map[string]bool)
		for name := range unused {
			known[name] = true
		}
		for _, c := range containers(pod) {
			for _, m := range c.VolumeMounts {
				if !known[m.Name] {
					t.Errorf("%s: container %s mounts %s, which is no volume", d.name, c.Name, m.Name)
				}
				delete(unused, m.Name)
				if c.Name == "envoy" && (!m.ReadOnly || m.Name == "state" || m.Name == "token" || m.Name == "identity" || m.Name == "kubernetes") {
					t.Errorf("%s: Envoy may write to, or see, %s", d.name, m.Name)
				}
			}
		}
		for name := range unused {
			t.Errorf("%s: nobody mounts the volume %s", d.name, name)
		}
	}
}

func TestTheTokenIsForTheControlPlaneAlone(t *testing.T) {
	for _, d := range built(t) {
		want := map[bool]string{false: "xds.example", true: "istio-ca"}[strings.HasPrefix(d.name, "istio")]
		found := false
		for _, v := range d.pod(t).Spec.Template.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				found = found || s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == want
			}
		}
		if !found {
			t.Errorf("%s: no projected token for the audience %s", d.name, want)
		}
	}
}

func TestEnvoysUserGetsToTheSocketByAGroup(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		var agent, envoy *corev1.Container
		for _, c := range containers(pod) {
			if runs(c) {
				agent = &c
			} else if c.Name == "envoy" {
				envoy = &c
			}
		}
		if envoy == nil {
			continue // the agent runs it, as its own user
		}
		if *agent.SecurityContext.RunAsUser == *envoy.SecurityContext.RunAsUser {
			t.Errorf("%s: Envoy has the agent's user, and so could read its state", d.name)
		}
		if group := d.setting(t, *agent, "socket-group"); group != fmt.Sprint(*pod.SecurityContext.FSGroup) {
			t.Errorf("%s: --socket-group %q is not the fsGroup %d, the one that all containers are in", d.name, group, *pod.SecurityContext.FSGroup)
		}
	}
}

func TestTheHardenedComponentReachesTheAgent(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		hardened := strings.HasSuffix(d.name, "+ hardened")
		for _, v := range pod.Volumes {
			if v.Name == "state-key" && (v.Secret == nil || v.Secret.DefaultMode == nil || *v.Secret.DefaultMode != 0o440) {
				t.Errorf("%s: volume %s: want a Secret that only root and the fsGroup may read: %+v", d.name, v.Name, v.Secret)
			}
		}
		for _, c := range containers(pod) {
			if !runs(c) {
				continue
			}
			key := d.setting(t, c, "state-key-file")
			if got := d.setting(t, c, "max-stale") != "" && key != ""; got != hardened {
				t.Errorf("%s: the guard and the key are set: %t", d.name, got)
			}
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return strings.HasPrefix(key, m.MountPath+"/") && m.Name == "state-key"
			})
			if mounted != hardened {
				t.Errorf("%s: the key %q is mounted: %t", d.name, key, mounted)
			}
		}
	}
}

// What the component lets agents do in the cluster is what they need, and no more, and the volume has what they
// publish.
func TestTheSeedComponentLetsAgentsPublishASeed(t *testing.T) {
	for _, d := range built(t) {
		if !strings.HasSuffix(d.name, "+ seed") {
			continue
		}
		pod := d.pod(t).Spec.Template.Spec
		var maps, allowed, mounted []string
		for _, object := range d.objects {
			switch o := object.(type) {
			case *corev1.ConfigMap:
				if strings.HasPrefix(o.Name, "holdfast-seed") {
					maps = append(maps, o.Name)
				}
			case *rbacv1.Role:
				want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "patch"}, ResourceNames: o.Rules[0].ResourceNames}}
				if !reflect.DeepEqual(o.Rules, want) {
					t.Errorf("%s: %+v, want %+v", d.name, o.Rules, want)
				}
				allowed = o.Rules[0].ResourceNames
			case *rbacv1.RoleBinding:
				want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: pod.ServiceAccountName, Namespace: namespace}}
				if !reflect.DeepEqual(o.Subjects, want) || o.RoleRef.Name != "holdfast-seed" {
					t.Errorf("%s: %+v, want %+v", d.name, o, want)
				}
			}
		}
		for _, v := range pod.Volumes {
			if v.Name != "seed" {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.ConfigMap.Optional == nil || !*s.ConfigMap.Optional {
					t.Errorf("%s: without the ConfigMap %s no pod starts", d.name, s.ConfigMap.Name)
				}
				mounted = append(mounted, s.ConfigMap.Name)
			}
		}
		if len(maps) != 4 || !slices.Equal(maps, allowed) || !slices.Equal(maps, mounted) {
			t.Errorf("%s: there are %v, agents may use %v, and the volume has %v", d.name, maps, allowed, mounted)
		}
		for _, c := range containers(pod) {
			has := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "kubernetes" })
			if has != runs(c) {
				t.Errorf("%s: container %s has the token for Kubernetes: %t", d.name, c.Name, has)
			}
			if runs(c) && (d.setting(t, c, "seed") != "/etc/holdfast-seed" || d.setting(t, c, "seed-publish") != "configmap:$(POD_NAMESPACE)/holdfast-seed") {
				t.Errorf("%s: the agent is not told where the seed is", d.name)
			}
		}
	}
}

func TestAGatewaySurvivesANodeThatIsDrained(t *testing.T) {
	for _, d := range built(t) {
		if !strings.HasPrefix(d.name, "overlays/gateway") {
			continue
		}
		gateway := d.pod(t)
		if gateway.Spec.Replicas == nil || *gateway.Spec.Replicas < 2 {
			t.Errorf("%s: one replica", d.name)
		}
		if n := gateway.Spec.Strategy.RollingUpdate.MaxUnavailable; n == nil || n.IntValue() != 0 {
			t.Errorf("%s: an update takes replicas away before others are there", d.name)
		}
		if len(gateway.Spec.Template.Spec.TopologySpreadConstraints) != 2 {
			t.Errorf("%s: not spread over nodes and zones", d.name)
		}
		budgets := 0
		for _, object := range d.objects {
			switch o := object.(type) {
			case *policyv1.PodDisruptionBudget:
				budgets++
				for key, value := range o.Spec.Selector.MatchLabels {
					if gateway.Spec.Template.Labels[key] != value {
						t.Errorf("%s: the PodDisruptionBudget selects %s=%s, which no pod has", d.name, key, value)
					}
				}
			case *corev1.Service:
				for key, value := range o.Spec.Selector {
					if gateway.Spec.Template.Labels[key] != value {
						t.Errorf("%s: the Service selects %s=%s, which no pod has", d.name, key, value)
					}
				}
				for _, port := range o.Spec.Ports {
					if !slices.ContainsFunc(containers(gateway.Spec.Template.Spec), func(c corev1.Container) bool {
						return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.TargetPort.StrVal })
					}) {
						t.Errorf("%s: the Service leads to the port %s, which no container has", d.name, port.TargetPort.StrVal)
					}
				}
			}
		}
		if budgets != 1 {
			t.Errorf("%s: %d PodDisruptionBudgets", d.name, budgets)
		}
	}
}

func TestEnvoyHasAsManyWorkersAsCPUs(t *testing.T) {
	for _, d := range built(t) {
		for _, c := range containers(d.pod(t).Spec.Template.Spec) {
			child := runs(c) && slices.Contains(c.Args, "--")
			if c.Name != "envoy" && !child {
				continue
			}
			at := slices.Index(c.Args, "--concurrency")
			switch {
			case c.Resources.Limits.Cpu().IsZero():
				t.Errorf("%s: container %s: no limits.cpu: a worker for each CPU of the node", d.name, c.Name)
			case child && at >= 0:
				t.Errorf("%s: container %s: --concurrency, which the agent takes from limits.cpu", d.name, c.Name)
			case !child && (at < 0 || c.Args[at+1] != c.Resources.Limits.Cpu().String()):
				t.Errorf("%s: container %s: --concurrency is not limits.cpu, %s", d.name, c.Name, c.Resources.Limits.Cpu())
			}
		}
	}
}
