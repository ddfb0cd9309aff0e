package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Pod is what the tests look at of a pod.
type Pod struct {
	Metadata struct {
		Name              string
		UID               string
		Annotations       map[string]string
		DeletionTimestamp string
	}
	Spec struct {
		NodeName       string
		InitContainers []struct{ Name, Image string }
		Containers     []struct{ Name, Image string }
	}
	Status struct {
		PodIP, Phase          string
		Conditions            []struct{ Type, Status, Reason, Message string }
		InitContainerStatuses []ContainerStatus
		ContainerStatuses     []ContainerStatus
	}
}

// ContainerStatus is the state of a container.
type ContainerStatus struct {
	Name, ContainerID string
	Ready             bool
	RestartCount      int
}

// Ready says whether the pod is Ready and is not to end.
func (p Pod) Ready() bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == "Ready" {
			return condition.Status == "True" && p.Metadata.DeletionTimestamp == ""
		}
	}
	return false
}

// Container returns the status of a container.
func (p Pod) Container(name string) (ContainerStatus, bool) {
	for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if status.Name == name {
			return status, true
		}
	}
	return ContainerStatus{}, false
}

// Pods returns the pods of a namespace that a label selector selects and that are not to end, by name.
func (c *Cluster) Pods(namespace, selector string) ([]Pod, error) {
	text, err := c.Kubectl("get", "pods", "--namespace", namespace, "--selector", selector, "--output", "json")
	if err != nil {
		return nil, err
	}
	var list struct{ Items []Pod }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	list.Items = slices.DeleteFunc(list.Items, func(p Pod) bool { return p.Metadata.DeletionTimestamp != "" })
	return list.Items, nil
}

// ReadyWatch records when pods become Ready and stop being so.
type ReadyWatch struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	since map[string]time.Time // since when a pod that was Ready is not, by name
	total map[string]time.Duration
	seen  map[string]bool // pods that were Ready once
}

// WatchReady watches the pods of a namespace that a label selector selects.
func (c *Cluster) WatchReady(namespace, selector string) (*ReadyWatch, error) {
	w := &ReadyWatch{
		cmd:  c.KubectlCommand("get", "pods", "--namespace", namespace, "--selector", selector, "--watch", "--output-watch-events", "--output", "json"),
		done: make(chan struct{}), since: make(map[string]time.Time), total: make(map[string]time.Duration), seen: make(map[string]bool),
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go w.read(out)
	return w, nil
}

func (w *ReadyWatch) read(out io.Reader) {
	defer close(w.done)
	decoder := json.NewDecoder(out)
	for {
		var event struct {
			Type   string
			Object Pod
		}
		if decoder.Decode(&event) != nil {
			return
		}
		w.note(time.Now(), event.Object, event.Type == "DELETED")
	}
}

// note records the state of a pod. One that is to end is not missed.
func (w *ReadyWatch) note(now time.Time, p Pod, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := p.Metadata.Name
	began, missing := w.since[name]
	switch {
	case gone || p.Metadata.DeletionTimestamp != "":
		if missing {
			w.total[name] += now.Sub(began)
		}
		delete(w.since, name)
		delete(w.seen, name)
	case p.Ready():
		if missing {
			w.total[name] += now.Sub(began)
			delete(w.since, name)
		}
		w.seen[name] = true
	case w.seen[name] && !missing:
		w.since[name] = now
	}
}

// Stop ends the watch. It returns for how long the pods that had been Ready were not, the longest of them, and an error
// if one still is not.
func (w *ReadyWatch) Stop() (time.Duration, error) {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	<-w.done
	_ = w.cmd.Wait() // it was ended
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest time.Duration
	for _, d := range w.total {
		longest = max(longest, d)
	}
	if len(w.since) > 0 {
		return longest, fmt.Errorf("not Ready still: %v", slices.Sorted(maps.Keys(w.since)))
	}
	return longest, nil
}
