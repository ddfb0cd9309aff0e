package cluster

import (
	"fmt"
	"os"
	"strings"
)

// components returns the command lines of the node.
func (c *Cluster) components() []component {
	pki := func(file string) string { return c.path("pki", file) }
	of := func(name string, flags string) component {
		replaced := strings.NewReplacer("PKI/", pki("")+"/", "ETC/", c.path("etc")+"/", "DATA/", c.path("data")+"/", "NODE_IP", NodeIP, "SERVICES", serviceIPs).Replace(flags)
		return component{Name: name, Args: append([]string{name}, strings.Fields(replaced)...)}
	}
	return []component{
		of("etcd", `--data-dir=DATA/etcd --unsafe-no-fsync --log-level=warn
			--listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379
			--listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=default=http://127.0.0.1:2380`),
		of("containerd", `-c ETC/containerd.toml`),
		of("kube-apiserver", `--etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=6443 --advertise-address=NODE_IP
			--service-cluster-ip-range=SERVICES --allow-privileged --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction
			--client-ca-file=PKI/ca.crt --tls-cert-file=PKI/apiserver.crt --tls-private-key-file=PKI/apiserver.key
			--kubelet-certificate-authority=PKI/ca.crt --kubelet-client-certificate=PKI/apiserver-kubelet.crt --kubelet-client-key=PKI/apiserver-kubelet.key
			--kubelet-preferred-address-types=InternalIP --service-account-issuer=https://kubernetes.default.svc
			--service-account-key-file=PKI/tokens.pub --service-account-signing-key-file=PKI/tokens.key`),
		of("kube-controller-manager", `--kubeconfig=PKI/kube-controller-manager.kubeconfig
			--authentication-kubeconfig=PKI/kube-controller-manager.kubeconfig --authorization-kubeconfig=PKI/kube-controller-manager.kubeconfig
			--bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials --service-account-private-key-file=PKI/tokens.key
			--root-ca-file=PKI/ca.crt --cluster-signing-cert-file=PKI/ca.crt --cluster-signing-key-file=PKI/ca.key
			--flex-volume-plugin-dir=DATA/volumeplugins`),
		of("kube-scheduler", `--kubeconfig=PKI/kube-scheduler.kubeconfig --authentication-kubeconfig=PKI/kube-scheduler.kubeconfig
			--authorization-kubeconfig=PKI/kube-scheduler.kubeconfig --bind-address=127.0.0.1 --leader-elect=false`),
		of("kubelet", `--config=ETC/kubelet.yaml --kubeconfig=PKI/kubelet.kubeconfig --root-dir=DATA/kubelet --cert-dir=DATA/kubelet-pki
			--hostname-override=node1 --node-ip=NODE_IP`),
		of("kube-proxy", `--config=ETC/proxy.yaml`),
	}
}

// writeSettings writes the files that the components' command lines name.
func (c *Cluster) writeSettings() error {
	replace := strings.NewReplacer("DIR/", c.cfg.Dir+"/", "POD_RANGE", podRange, "DNS_IP", DNS)
	for name, text := range map[string]string{
		// The kubelet gives it to pods that do not ask the cluster's name server. With an empty one containerd would
		// copy that of the machine, whose server nobody reaches from here.
		"resolv.conf":          "nameserver 127.0.0.1\n",
		"kubelet.yaml":         kubeletSettings,
		"containerd.toml":      containerdSettings,
		"cni/10-node.conflist": cniSettings,
		"proxy.yaml":           proxySettings,
	} {
		if err := os.WriteFile(c.path("etc", name), []byte(replace.Replace(text)), 0o644); err != nil {
			return fmt.Errorf("settings of the node: %w", err)
		}
	}
	return nil
}

// failCgroupV1: with v2 alone the kubelet does not look at it.
const kubeletSettings = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://DIR/run/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: DIR/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: DIR/pki/kubelet-server.crt
tlsPrivateKeyFile: DIR/pki/kubelet-server.key
clusterDNS: [DNS_IP]
clusterDomain: cluster.local
resolvConf: DIR/etc/resolv.conf
podLogsDir: DIR/data/podlogs
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
volumePluginDir: DIR/data/volumeplugins
syncFrequency: 10s
`

// restrict_oom_score_adj: without CAP_SYS_RESOURCE a score below 0 cannot be set, and runc fails.
const containerdSettings = `version = 2
root = "DIR/data/containerd"
state = "DIR/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "DIR/run/containerd.sock"
[ttrpc]
  address = "DIR/run/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "DIR/cni"
    conf_dir = "DIR/etc/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

const cniSettings = `{"cniVersion": "1.0.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "DIR/run/cni", "ranges": [[{"subnet": "POD_RANGE"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

// nf_conntrack_max cannot be set in a network namespace: conntrack's settings are left as they are.
const proxySettings = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: POD_RANGE
hostnameOverride: node1
clientConnection: {kubeconfig: DIR/pki/kube-proxy.kubeconfig}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`
