package deploy

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// limit bounds every wait for something that should happen soon.
const limit = 30 * time.Second

// sandbox is what a pod runs in: a root directory, and a network with a loopback only.
type sandbox struct {
	t     *testing.T
	dir   string
	group uint32 // fsGroup
	// do runs a function in the network of the pod: the children that it starts and the
	// connections that it opens are there.
	do func(func())
}

// newSandbox makes the root directory of the image, with Envoy, and a network. A machine
// on which the test may not is none for it.
func newSandbox(t *testing.T, group uint32) *sandbox {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start containers: this needs chroot, users and a network of its own")
	}
	s := &sandbox{t: t, group: group}
	var err error
	if s.dir, err = os.MkdirTemp("", "pod-"); err != nil { // shorter than t.TempDir
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(s.dir) })
	s.must(os.Chmod(s.dir, 0o755))
	s.must(os.CopyFS(s.dir, os.DirFS(rootFS(t))))
	s.must(os.Chmod(filepath.Join(s.dir, entrypoint), 0o755))
	s.addEnvoy()
	s.network()
	return s
}

func (s *sandbox) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// path returns where a path of the pod is.
func (s *sandbox) path(elements ...string) string {
	return filepath.Join(append([]string{s.dir}, elements...)...)
}

// addEnvoy puts Envoy, the libraries that it is linked with, and the devices that there
// are in every container where its image has them.
func (s *sandbox) addEnvoy() {
	s.t.Helper()
	envoy := envoytest.Binary(s.t)
	s.link(envoy, "/usr/local/bin/envoy")
	out, err := exec.Command("ldd", envoy).Output()
	s.must(err)
	for _, found := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		s.link(string(found[1]), string(found[1]))
	}
	s.must(os.MkdirAll(s.path("dev/shm"), 0o755))
	s.must(os.Chmod(s.path("dev/shm"), 0o777|fs.ModeSticky))
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "urandom": 9} {
		s.must(unix.Mknod(s.path("dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))))
		s.must(os.Chmod(s.path("dev", name), 0o666))
	}
}

// link puts a file of this machine into the pod.
func (s *sandbox) link(file, at string) {
	s.t.Helper()
	file, err := filepath.EvalSymlinks(file)
	s.must(err)
	s.must(os.MkdirAll(filepath.Dir(s.path(at)), 0o755))
	if os.Link(file, s.path(at)) == nil {
		return
	}
	data, err := os.ReadFile(file) // of another file system
	s.must(err)
	s.must(os.WriteFile(s.path(at), data, 0o755))
}

// network starts the thread that is in the pod's network and has the pod's mounts. It ends
// with the test, and both with it.
func (s *sandbox) network() {
	s.t.Helper()
	type work struct {
		do   func()
		done chan struct{}
	}
	queue, ready := make(chan work), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is of no use to anybody else
		err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = loopbackUp()
		}
		ready <- err
		for w := range queue {
			w.do()
			close(w.done)
		}
	}()
	s.t.Cleanup(func() { close(queue) })
	if err := <-ready; errors.Is(err, unix.EPERM) {
		s.t.Skip("this machine allows no network of one's own: ", err)
	} else if err != nil {
		s.t.Fatal(err)
	}
	s.do = func(f func()) {
		w := work{f, make(chan struct{})}
		queue <- w
		<-w.done
	}
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// get asks a port of the pod, as the kubelet does.
func (s *sandbox) get(port int32, path string) (status int, body string) {
	s.do(func() {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
		if err != nil {
			body = err.Error()
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			body = err.Error()
			return
		}
		defer func() { _ = resp.Body.Close() }()
		var text bytes.Buffer
		_, _ = text.ReadFrom(resp.Body)
		status, body = resp.StatusCode, text.String()
	})
	return status, body
}

// process is a container that runs.
type process struct {
	*exec.Cmd
	name string
	log  string
	done chan struct{}
	err  error
}

// start starts a command as the user of a container.
func (s *sandbox) start(c corev1.Container, environ []string, argv ...string) *process {
	s.t.Helper()
	p := &process{name: c.Name, log: filepath.Join(s.t.TempDir(), "log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	s.must(err)
	defer func() { _ = out.Close() }()
	p.Cmd = &exec.Cmd{
		Path: argv[0], Args: argv, Dir: "/", Env: environ, Stdout: out, Stderr: out,
		SysProcAttr: &syscall.SysProcAttr{
			Chroot: s.dir, Pdeathsig: syscall.SIGKILL,
			Credential: &syscall.Credential{
				Uid: uint32(*c.SecurityContext.RunAsUser), Gid: uint32(*c.SecurityContext.RunAsGroup), Groups: []uint32{s.group},
			},
		},
	}
	s.do(func() { err = p.Start() })
	s.must(err)
	go func() {
		p.err = p.Wait()
		close(p.done)
	}()
	s.t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.done
		if s.t.Failed() {
			s.t.Logf("%s:\n%s", p.name, p.said())
		}
	})
	return p
}

func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-8000):])
}

// ends waits for the process to end with code 0.
func (s *sandbox) ends(p *process, what string) {
	s.t.Helper()
	select {
	case <-p.done:
		if p.err != nil {
			s.t.Fatalf("%s: %v:\n%s", what, p.err, p.said())
		}
	case <-time.After(limit):
		s.t.Fatalf("%s: still running:\n%s", what, p.said())
	}
}

// eventually polls until a port answers as wanted.
func (s *sandbox) eventually(port int32, path string, want int, alive ...*process) {
	s.t.Helper()
	late := time.After(limit)
	for {
		status, body := s.get(port, path)
		if status == want {
			return
		}
		for _, p := range alive {
			select {
			case <-p.done:
				s.t.Fatalf("%s ended (%v) before %d%s answered %d:\n%s", p.name, p.err, port, path, want, p.said())
			default:
			}
		}
		select {
		case <-late:
			s.t.Fatalf("%d%s: %d %s, want %d", port, path, status, body, want)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// mount makes a volume as the kubelet does where the pod has a group: directories of
// root and the group to which everybody may write, files that the group may read.
func (s *sandbox) mount(d deployment, v corev1.Volume, at string) {
	s.t.Helper()
	dir := s.path(at)
	s.must(os.RemoveAll(dir)) // of the image
	s.must(os.MkdirAll(dir, 0o755))
	s.must(os.Chown(dir, 0, int(s.group)))
	s.must(unix.Chmod(dir, 0o2777))
	s.do(func() { s.must(unix.Mount(dir, dir, "", unix.MS_BIND, "")) }) // so that it is the root of a volume
	file := func(name, text string, mode uint32, uid int) {
		s.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		s.must(os.Chown(filepath.Join(dir, name), uid, int(s.group)))
		s.must(unix.Chmod(filepath.Join(dir, name), mode))
	}
	switch {
	case v.Secret != nil:
		file(v.Secret.Items[0].Path, strings.Repeat("k", 32), uint32(*v.Secret.DefaultMode), 0)
	case v.EmptyDir != nil:
	case v.ConfigMap != nil && v.ConfigMap.Name == "istio-ca-root-cert":
		file("root-cert.pem", authority(s.t), 0o644, 0)
	case v.ConfigMap != nil:
		for name, text := range d.config(s.t, v.ConfigMap.Name) {
			file(name, text, 0o644, 0)
		}
	case v.DownwardAPI != nil && strings.Contains(v.DownwardAPI.Items[0].FieldRef.FieldPath, "['"):
		item := v.DownwardAPI.Items[0]
		_, key, _ := strings.Cut(strings.TrimSuffix(item.FieldRef.FieldPath, "']"), "['")
		text, ok := d.pod(s.t).Spec.Template.Annotations[key]
		if !ok {
			s.t.Fatalf("volume %s: no annotation %s", v.Name, key)
		}
		file(item.Path, text, 0o644, 0)
	case v.DownwardAPI != nil:
		file("labels", "app.kubernetes.io/name=\"web\"\n", 0o644, 0)
		file("annotations", "note=\"with \\\"quotes\\\"\"\n", 0o644, 0)
	case v.Name == "seed": // nothing was published yet
	case v.Name == "kubernetes":
		file("token", "a.token", 0o640, 0)
		file("ca.crt", authority(s.t), 0o644, 0)
	case v.Projected != nil:
		file(v.Projected.Sources[0].ServiceAccountToken.Path, "a.token", 0o640, 0)
	default:
		s.t.Fatalf("volume %s: the test does not know its kind", v.Name)
	}
}

// authority returns the certificate of a CA.
func authority(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// environ returns the variables of a container, as the kubelet fills them in, and more.
func environ(t *testing.T, pod corev1.PodSpec, c corev1.Container, more ...string) []string {
	t.Helper()
	fields := map[string]string{
		"metadata.name": "web-0", "metadata.namespace": "default", "status.podIP": "10.0.0.7",
		"spec.serviceAccountName": pod.ServiceAccountName, "spec.nodeName": "node-1",
	}
	env := []string{"PATH=/usr/local/bin", "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=6443"} // where nobody listens
	for _, v := range c.Env {
		value := v.Value
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			var known bool
			if value, known = fields[v.ValueFrom.FieldRef.FieldPath]; !known {
				t.Fatalf("container %s: field %s", c.Name, v.ValueFrom.FieldRef.FieldPath)
			}
		}
		if v.ValueFrom != nil && v.ValueFrom.ResourceFieldRef != nil {
			ref := v.ValueFrom.ResourceFieldRef
			of := slices.IndexFunc(containers(pod), func(o corev1.Container) bool { return o.Name == ref.ContainerName })
			if of < 0 || ref.Resource != "limits.memory" {
				t.Fatalf("container %s: %s of %s", c.Name, ref.Resource, ref.ContainerName)
			}
			value = fmt.Sprint(containers(pod)[of].Resources.Limits.Memory().Value())
		}
		env = append(env, v.Name+"="+expand(env, []string{value})[0])
	}
	return append(env, more...) // the last one counts
}

// expand fills in the variables of a command line.
func expand(env []string, args []string) []string {
	out := slices.Clone(args)
	for i := range out {
		for _, pair := range env {
			name, value, _ := strings.Cut(pair, "=")
			out[i] = strings.ReplaceAll(out[i], "$("+name+")", value)
		}
	}
	return out
}

// Each pod starts, serves and ends, in the order in which the kubelet runs its
// containers. There is no control plane but a directory of resources, and in Istio's
// case none, so that it does not become ready.
func TestPodsStartServeAndEnd(t *testing.T) {
	for _, d := range append(built(t), injectedPods(t)...) {
		t.Run(d.name, func(t *testing.T) { startPod(t, d) })
	}
}

func startPod(t *testing.T, d deployment) {
	pod := d.pod(t).Spec.Template.Spec
	s := newSandbox(t, uint32(*pod.SecurityContext.FSGroup))
	s.must(os.CopyFS(s.path("xds"), os.DirFS(filepath.Join(root(t), "examples/mesh"))))
	mounted := make(map[string]string)
	var agent, envoy *corev1.Container
	for _, c := range containers(pod) {
		switch {
		case c.Name == "application":
			continue
		case runs(c):
			agent = &c
		case c.Name == "envoy":
			envoy = &c
		}
		for _, m := range c.VolumeMounts {
			if at := mounted[m.Name]; at == m.MountPath {
				continue
			} else if at != "" {
				t.Fatalf("volume %s is in two places, and the test has one root directory", m.Name)
			}
			mounted[m.Name] = m.MountPath
			s.mount(d, pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })], m.MountPath)
		}
	}
	first := pod.InitContainers[slices.IndexFunc(pod.InitContainers, func(c corev1.Container) bool { return c.Name == "bootstrap" })]
	s.ends(s.start(first, environ(t, pod, first), append([]string{entrypoint}, first.Args...)...), "bootstrap")

	// The sandbox has one file system for all, so that where the test's control plane is
	// can be told by a variable; the rest is the manifest's.
	reachable := !strings.HasPrefix(d.name, "istio")
	more := []string{"HOLDFAST_DRAIN_MIN=0s"}
	if reachable {
		more = append(more, "HOLDFAST_UPSTREAM=file:/xds")
	}
	env := environ(t, pod, *agent, more...)
	holdfast := s.start(*agent, env, append([]string{entrypoint}, expand(env, agent.Args)...)...)
	s.eventually(healthPort, "/startupz", http.StatusOK, holdfast)
	s.eventually(healthPort, "/livez", http.StatusOK, holdfast)
	running := []*process{holdfast}
	if envoy != nil {
		// Envoy's user gets to the socket, and to nothing else of the agent.
		asks := s.start(*envoy, nil, entrypoint, "bootstrap", "--print", "--node-id=a", "--node-cluster=a",
			"--socket="+d.setting(t, *agent, "socket"), "--wait-for=socket", "--wait-timeout=5s")
		s.ends(asks, "Envoy's user connects")
		for _, dir := range []string{filepath.Dir(strings.TrimPrefix(d.setting(t, *agent, "admin"), "unix:")), d.setting(t, *agent, "state-dir")} {
			if info, err := os.Stat(s.path(dir)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v: want it for the agent alone", dir, info.Mode(), err)
			}
		}
		running = append(running, s.start(*envoy, []string{}, append(slices.Clone(envoy.Command), envoy.Args...)...))
	}
	if !reachable {
		s.eventually(adminPort, "/server_info", http.StatusOK, running...)
		if status, body := s.get(healthPort, "/readyz"); status != http.StatusServiceUnavailable {
			t.Errorf("/readyz without istiod: %d %s", status, body)
		}
		stop(t, s, running)
		return
	}
	s.eventually(adminPort, "/server_info", http.StatusOK, running...)
	s.eventually(readyPort, "/healthz/ready", http.StatusOK, running...)
	s.eventually(metricsPort, "/stats/prometheus", http.StatusOK, running...)
	s.eventually(healthPort, "/readyz", http.StatusOK, running...)
	hook := func(h *corev1.LifecycleHandler, what string) {
		if h != nil {
			s.ends(s.start(*agent, env, h.Exec.Command...), what)
		}
	}
	hook(agent.Lifecycle.PostStart, "postStart")
	hook(agent.Lifecycle.PreStop, "preStop")
	s.eventually(healthPort, "/readyz", http.StatusServiceUnavailable, running...)
	s.eventually(readyPort, "/healthz/ready", http.StatusServiceUnavailable, running...)
	stop(t, s, running)
}

// stop ends containers as the kubelet does sidecars: the last one first.
func stop(t *testing.T, s *sandbox, running []*process) {
	t.Helper()
	for _, p := range slices.Backward(running) {
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
		s.ends(p, p.name+" after SIGTERM")
	}
}
