package gatewayapi

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// echoImage is the suite's own backend, of any of its releases. Other images (the DNS server of UDPRoutes) are not run.
const echoImage = "registry.k8s.io/gateway-api/echo-basic:"

// pod is a running backend of the suite: the suite's own program, in a network namespace of its own.
type pod struct {
	types.NamespacedName
	of     types.NamespacedName // its Deployment
	labels map[string]string
	ip     string
	// cmd is nil for an Envoy that serves a Gateway, which is a pod for the endpoints of Services only.
	cmd    *exec.Cmd
	exited chan struct{}

	mu    sync.Mutex
	lines []line
	rest  string // a line that has not ended
}

// line is what a pod has written, and when.
type line struct {
	at   time.Time
	text string
}

// Write takes what the program writes.
func (p *pod) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest += string(b)
	for {
		text, rest, ok := strings.Cut(p.rest, "\n")
		if !ok {
			return len(b), nil
		}
		p.lines, p.rest = append(p.lines, line{time.Now(), text}), rest
	}
}

// since returns what the program has written since a time.
func (p *pod) since(t time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out strings.Builder
	for _, l := range p.lines {
		if !l.at.Before(t) {
			fmt.Fprintln(&out, l.text)
		}
	}
	return out.String()
}

func (p *pod) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// nodes runs what is deployed: it has the addresses of the pods, and the pods of the Deployments.
type nodes struct {
	dir  string
	next int
	pods []*pod
}

// address returns an address that no pod has had.
func (n *nodes) address() string {
	n.next++
	return fmt.Sprintf("10.77.%d.%d", 1+n.next/250, 1+n.next%250)
}

// deploy starts the pods of a Deployment. Secrets are what its volumes have.
func (n *nodes) deploy(d *appsv1.Deployment, secret func(types.NamespacedName) *corev1.Secret) error {
	of := types.NamespacedName{Namespace: d.Namespace, Name: d.Name}
	for i := range int(or(d.Spec.Replicas, 1)) {
		spec := d.Spec.Template.Spec
		if len(spec.Containers) != 1 || !strings.HasPrefix(spec.Containers[0].Image, echoImage) {
			return nil
		}
		p := &pod{
			NamespacedName: types.NamespacedName{Namespace: d.Namespace, Name: d.Name + "-set-" + strconv.Itoa(i)}, of: of,
			labels: d.Spec.Template.Labels, exited: make(chan struct{}),
		}
		env, err := n.environment(p, &spec, secret)
		if err != nil {
			return fmt.Errorf("starting the pods of %s: %w", of, err)
		}
		p.ip = n.address()
		p.cmd = exec.Command(os.Args[0], podCommand, p.ip, os.Getenv(echoVariable))
		p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, p, p
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := p.cmd.Start(); err != nil {
			return fmt.Errorf("starting the pods of %s: %w", of, err)
		}
		go func() {
			_ = p.cmd.Wait()
			close(p.exited)
		}()
		n.pods = append(n.pods, p)
	}
	return nil
}

// environment returns the variables of a pod's program. What is mounted for it is in a directory of its own, which stands in the variables
// in place of where it is mounted.
func (n *nodes) environment(p *pod, spec *corev1.PodSpec, secret func(types.NamespacedName) *corev1.Secret) ([]string, error) {
	mounted := make(map[string]string)
	for _, mount := range spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if i < 0 || spec.Volumes[i].Secret == nil {
			return nil, fmt.Errorf("the volume %s is not a Secret", mount.Name)
		}
		from := spec.Volumes[i].Secret
		of := secret(types.NamespacedName{Namespace: p.Namespace, Name: from.SecretName})
		if of == nil {
			return nil, errNoSecret
		}
		dir := filepath.Join(n.dir, "volumes", p.Namespace, p.Name, mount.Name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		for _, item := range from.Items {
			if err := os.WriteFile(filepath.Join(dir, item.Path), of.Data[item.Key], 0o600); err != nil {
				return nil, err
			}
		}
		mounted[mount.MountPath] = dir
	}
	var env []string
	for _, v := range spec.Containers[0].Env {
		value := v.Value
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			value = map[string]string{"metadata.name": p.Name, "metadata.namespace": p.Namespace}[v.ValueFrom.FieldRef.FieldPath]
		}
		for path, dir := range mounted {
			if rest, ok := strings.CutPrefix(value, path+"/"); ok {
				value = filepath.Join(dir, rest)
			}
		}
		env = append(env, v.Name+"="+value)
	}
	return env, nil
}

// errNoSecret says that a pod waits for a Secret.
var errNoSecret = errors.New("its Secret does not exist")

// remove ends the pods of a Deployment, and returns them.
func (n *nodes) remove(of types.NamespacedName) (ended []*pod) {
	n.pods = slices.DeleteFunc(n.pods, func(p *pod) bool {
		if p.of != of {
			return false
		}
		p.stop()
		ended = append(ended, p)
		return true
	})
	return ended
}

// ready reports whether somebody listens at the port that all of the suite's backends have.
func (p *pod) ready() bool {
	return p.cmd == nil || testbed.Dial("tcp", net.JoinHostPort(p.ip, "3000")) == nil
}

// object returns the pod as the API has it.
func (p *pod) object(ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.labels, UID: types.UID(p.String())},
		Spec:       corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: p.ip, PodIPs: []corev1.PodIP{{IP: p.ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	}
}

// slice returns the EndpointSlice of a Service with a selector; nil for one without.
func (n *nodes) slice(svc *corev1.Service) *discoveryv1.EndpointSlice {
	if len(svc.Spec.Selector) == 0 {
		return nil
	}
	out := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: svc.Name + "-pods", Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, port := range svc.Spec.Ports {
		number := port.Port
		if port.TargetPort.Type == intstr.Int && port.TargetPort.IntVal != 0 {
			number = port.TargetPort.IntVal
		}
		protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP)
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: &port.Name, Port: &number, Protocol: &protocol, AppProtocol: port.AppProtocol})
	}
	ready := true
	for _, p := range n.pods {
		if p.Namespace == svc.Namespace && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.labels)) {
			out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{p.ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name},
			})
		}
	}
	return out
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// unstructuredOf returns an object in the form that the cluster has.
func unstructuredOf(obj any) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	return &unstructured.Unstructured{Object: content}, err
}

// The kinds of which more is made than documents.
var (
	podKind        = schema.GroupKind{Kind: "Pod"}
	serviceKind    = schema.GroupKind{Kind: "Service"}
	secretKind     = schema.GroupKind{Kind: "Secret"}
	deploymentKind = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	sliceKind      = schema.GroupKind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}
	gatewayKind    = schema.GroupKind{Group: gatewayGroup, Kind: "Gateway"}
)
