package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// Namespace is a namespace of a test's own.
type Namespace struct {
	*testing.T
	Name string
}

// NewNamespace makes a namespace with labels such as "name: value". At the end of the test it is deleted, and if the
// test has failed, described before.
func NewNamespace(t *testing.T, name string, labels ...string) *Namespace {
	t.Helper()
	n := &Namespace{t, name}
	n.Kubectl("wait", "--for=delete", "namespace/"+name, "--timeout=2m") // that of a test before
	n.Check(Node.Apply(fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {%s}}}`, name, strings.Join(labels, ", "))))
	t.Cleanup(func() {
		if t.Failed() {
			n.describe()
		}
		_, _ = Node.Kubectl("delete", "namespace", name, "--wait=false")
		_, _ = Node.Kubectl("delete", "pods", "--namespace", name, "--all", "--grace-period=1", "--wait=true")
	})
	return n
}

// During is the namespace for a part of its test.
func (n *Namespace) During(t *testing.T) *Namespace { return &Namespace{t, n.Name} }

// describe logs what the namespace looks like.
func (n *Namespace) describe() {
	for _, args := range [][]string{{"get", "pods", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"}} {
		out, err := Node.Kubectl(append([]string{"--namespace", n.Name}, args...)...)
		n.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, lastLines(out, 40))
	}
	pods, err := Node.Pods(n.Name, "")
	if err != nil {
		n.Log(err)
	}
	for _, pod := range pods {
		out, err := Node.Kubectl("logs", "--namespace", n.Name, pod.Metadata.Name, "--all-containers", "--prefix", "--tail=20")
		n.Logf("logs of %s: %v\n%s", pod.Metadata.Name, err, lastLines(out, 60))
	}
}

func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// Check ends the test with an error.
func (n *Namespace) Check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// Write writes a file for the test.
func (n *Namespace) Write(dir, name, text string) {
	n.Helper()
	n.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// Kubectl runs kubectl in the namespace.
func (n *Namespace) Kubectl(args ...string) string {
	n.Helper()
	out, err := Node.Kubectl(append([]string{"--namespace", n.Name}, args...)...)
	n.Check(err)
	return out
}

// Apply applies documents in the namespace.
func (n *Namespace) Apply(documents string) {
	n.Helper()
	n.Check(Node.Apply(documents, "--namespace", n.Name))
}

// RolledOut waits until a deployment has only new pods, and all of them are Ready.
func (n *Namespace) RolledOut(deployment string) {
	n.Helper()
	n.Check(RolledOut(n.Name, deployment))
}

// Pods returns the pods that a label selector selects and that are not to end.
func (n *Namespace) Pods(selector string) []cluster.Pod {
	n.Helper()
	pods, err := Node.Pods(n.Name, selector)
	n.Check(err)
	return pods
}

// Pod returns the first of the pods that a label selector selects.
func (n *Namespace) Pod(selector string) cluster.Pod {
	n.Helper()
	pods := n.Pods(selector)
	if len(pods) == 0 {
		n.Fatalf("there is no pod with %s", selector)
	}
	return pods[0]
}

// AllReady waits until so many pods are Ready, and none is not.
func (n *Namespace) AllReady(selector string, count int) {
	n.Helper()
	n.Eventually(3*time.Minute, func() error {
		pods := n.Pods(selector)
		for _, pod := range pods {
			if !pod.Ready() {
				return fmt.Errorf("pod %s is not Ready", pod.Metadata.Name)
			}
		}
		if len(pods) != count {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// Process returns the id, in the node, of the first process of a pod's container.
func (n *Namespace) Process(pod cluster.Pod, container string) int {
	n.Helper()
	status, ok := pod.Container(container)
	if !ok {
		n.Fatalf("pod %s has no container %s", pod.Metadata.Name, container)
	}
	out, err := Node.Run("ctr", "--address", Node.ContainerdSocket(), "--namespace", "k8s.io", "task", "ls")
	n.Check(err)
	id := strings.TrimPrefix(status.ContainerID, "containerd://")
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == id { // id, pid, status
			return n.number(fields[1])
		}
	}
	n.Fatalf("container %s of pod %s does not run:\n%s", container, pod.Metadata.Name, out)
	return 0
}

// Child returns the child of a process that has a name, such as the Envoy of an agent.
func (n *Namespace) Child(pid int, name string) int {
	n.Helper()
	out, err := Node.Run("pgrep", "-P", strconv.Itoa(pid), name)
	n.Check(err)
	return n.number(strings.TrimSpace(out))
}

func (n *Namespace) number(text string) int {
	n.Helper()
	number, err := strconv.Atoi(text)
	n.Check(err)
	return number
}

// Signal sends a signal to processes of the node.
func (n *Namespace) Signal(name string, pids ...int) {
	n.Helper()
	args := []string{"-" + name}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	_, err := Node.Run("kill", args...)
	n.Check(err)
}

// Eventually waits until a condition holds.
func (n *Namespace) Eventually(limit time.Duration, condition func() error) {
	n.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.Fatalf("not within %s: %v", limit, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// Service returns the address of a Service.
func (n *Namespace) Service(name string) string {
	n.Helper()
	return n.Kubectl("get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
}
