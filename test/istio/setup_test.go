package istio

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// system is the namespace of istiod.
const system = "istio-system"

// programs is the directory that `make istio` fills, and that `make cluster` names.
func programs() string { return os.Getenv("ISTIO") }

// setUp installs istiod by its own charts, with the template of deploy/istio.
func setUp(dir string) error {
	for _, name := range []string{"pilot-discovery", "pilot-agent", "istioctl", "istio-cni", "install-cni"} {
		if _, err := os.Stat(filepath.Join(programs(), name)); err != nil {
			return errors.New("Istio's programs are not built: run `make cluster`, or set ISTIO to the directory that `make istio` names")
		}
	}
	images, err := images()
	if err != nil {
		return err
	}
	if err := rig.Node.Import(images...); err != nil {
		return err
	}
	if err := rig.Node.Apply(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", system)); err != nil {
		return err
	}
	return install(dir)
}

// install applies Istio's charts, with settings such as values.pilot.cni.enabled=true, and starts istiod with them.
func install(dir string, settings ...string) error {
	documents, err := manifest(dir, settings)
	if err != nil {
		return err
	}
	if err := rig.Node.Apply(documents, "--server-side", "--force-conflicts"); err != nil {
		return err
	}
	if err := rig.RolledOut(system, "istiod"); err != nil {
		return err
	}
	return webhookReady()
}

// manifest returns Istio's charts as istioctl renders them, which has Helm's module and the charts in it.
func manifest(dir string, settings []string) (string, error) {
	template, err := os.ReadFile(filepath.Join(rig.Repository(), "deploy/istio/values.yaml"))
	if err != nil {
		return "", err
	}
	var operator map[string]any
	if err := yaml.Unmarshal([]byte(testOperator), &operator); err != nil {
		return "", err
	}
	var values map[string]any
	if err := yaml.Unmarshal(template, &values); err != nil {
		return "", err
	}
	maps.Copy(operator["spec"].(map[string]any)["values"].(map[string]any), values)
	text, err := yaml.Marshal(operator)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "operator.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(programs(), "istioctl"), "manifest", "generate", "--filename", file)
	for _, setting := range settings {
		cmd.Args = append(cmd.Args, "--set", setting)
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, problems.String())
	}
	return string(out), nil
}

// testOperator is what a node of two processors, and an Envoy that is not Istio's, need. Envoy's own build has no filters
// for metadata exchange, ALPN and Istio's metrics. The image that `make image` builds has Istio's Envoy, and needs none of
// these switches.
const testOperator = `
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  profile: minimal
  values:
    global:
      imagePullPolicy: IfNotPresent
      proxy:
        image: docker.io/local/proxyv2:dev
        resources: {requests: {cpu: 20m, memory: 64Mi}, limits: {cpu: "2", memory: 512Mi}}
      proxy_init: {image: docker.io/local/proxyv2:dev}
    pilot:
      autoscaleEnabled: false
      image: docker.io/local/pilot:dev
      resources: {requests: {cpu: 50m, memory: 128Mi}}
      env: {PILOT_ENABLE_METADATA_EXCHANGE: "false", PILOT_ENABLE_ALPN_FILTER: "false"}
    telemetry: {enabled: false}
    cni: {image: docker.io/local/install-cni:dev}
`

// webhookReady waits until istiod has written its CA into the webhook.
func webhookReady() error {
	deadline := time.Now().Add(time.Minute)
	for {
		bundle, err := rig.Node.Kubectl("get", "mutatingwebhookconfiguration", "istio-sidecar-injector", "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}")
		if err == nil && bundle != "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("istiod has not completed its webhook: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// images are those of istiod, of its own proxy with a stock Envoy, and of its CNI plugin.
func images() ([]cluster.Image, error) {
	discovery, agent := filepath.Join(programs(), "pilot-discovery"), filepath.Join(programs(), "pilot-agent")
	tmp := cluster.File{Path: "/tmp", Dir: true, Mode: os.ModeSticky | 0o777}
	users := []cluster.File{
		{Path: "/etc/passwd", Text: "root:x:0:0:root:/:/sbin/nologin\nistio-proxy:x:1337:1337::/:/sbin/nologin\n"},
		{Path: "/etc/group", Text: "root:x:0:\nistio-proxy:x:1337:\n"},
	}
	libraries, err := cluster.Libraries(discovery)
	if err != nil {
		return nil, err
	}
	pilot := cluster.Image{Names: []string{"docker.io/local/pilot:dev"}, User: "1337:1337", Entrypoint: []string{"/usr/local/bin/pilot-discovery"}}
	pilot.Files = append(append(users, tmp, cluster.File{Path: "/usr/local/bin/pilot-discovery", From: discovery}), libraries...)

	proxy := cluster.Image{Names: []string{"docker.io/local/proxyv2:dev"}, User: "1337:1337", Entrypoint: []string{"/usr/local/bin/pilot-agent"}}
	envoy, err := rig.EnvoyFiles()
	if err != nil {
		return nil, err
	}
	tables, err := iptables()
	if err != nil {
		return nil, err
	}
	if libraries, err = cluster.Libraries(agent); err != nil {
		return nil, err
	}
	bootstrap, err := moduleFile("tools/packaging/common/envoy_bootstrap.json")
	if err != nil {
		return nil, err
	}
	for _, file := range append(append(envoy, tables...), libraries...) {
		if !strings.HasPrefix(file.Path, "/etc/") {
			proxy.Files = append(proxy.Files, file)
		}
	}
	proxy.Files = append(append(unique(proxy.Files), users...), tmp,
		cluster.File{Path: "/usr/local/bin/pilot-agent", From: agent},
		cluster.File{Path: "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json", From: bootstrap},
		cluster.File{Path: "/etc/istio/proxy", Dir: true, Mode: 0o777},
		cluster.File{Path: "/run", Dir: true},
	)
	// What deploy/istio/deployment.yaml takes Envoy from.
	apart := cluster.Image{Names: []string{"docker.io/istio/proxyv2:1.31.1-distroless"}, Files: append([]cluster.File{tmp}, envoy...), User: "1337:1337"}
	plugin := filepath.Join(programs(), "istio-cni")
	installer := filepath.Join(programs(), "install-cni")
	if libraries, err = cluster.Libraries(plugin, installer); err != nil {
		return nil, err
	}
	cni := cluster.Image{Names: []string{"docker.io/local/install-cni:dev"}, User: "0:0", Files: unique(append(append(tables, libraries...),
		tmp, cluster.File{Path: "/opt/cni/bin/istio-cni", From: plugin}, cluster.File{Path: "/usr/local/bin/install-cni", From: installer},
		cluster.File{Path: "/run", Dir: true}, cluster.File{Path: "/var/run", Dir: true}))}
	return []cluster.Image{pilot, proxy, apart, cni}, nil
}

// unique leaves out files that are there already: libraries of several programs.
func unique(files []cluster.File) (rest []cluster.File) {
	seen := make(map[string]bool)
	for _, file := range files {
		if !seen[file.Path] {
			seen[file.Path] = true
			rest = append(rest, file)
		}
	}
	return rest
}

// moduleFile returns the path of a file of Istio's module.
func moduleFile(name string) (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio")
	cmd.Dir = "components"
	out, err := cmd.Output()
	return filepath.Join(strings.TrimSpace(string(out)), name), err
}

// iptables are iptables and nft of this machine, as istio-iptables calls them.
func iptables() (files []cluster.File, err error) {
	const tables, nft, plugins = "/usr/sbin/xtables-nft-multi", "/usr/sbin/nft", "/usr/lib/x86_64-linux-gnu/xtables"
	programs := []string{tables, nft}
	for _, program := range programs {
		files = append(files, cluster.File{Path: program, From: program})
	}
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		files = append(files, cluster.File{Path: "/usr/sbin/" + name, Link: "xtables-nft-multi"},
			cluster.File{Path: "/usr/sbin/" + strings.Replace(name, "tables", "tables-nft", 1), Link: "xtables-nft-multi"})
	}
	matches, err := filepath.Glob(plugins + "/*.so")
	if err != nil {
		return nil, err
	}
	files = append(files, cluster.File{Path: "/sbin", Link: "usr/sbin"}, cluster.File{Path: plugins, From: plugins})
	libraries, err := cluster.Libraries(append(programs, matches...)...)
	return append(files, libraries...), err
}
