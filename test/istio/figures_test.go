package istio

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// What docs/istio.md says of holdfast and pilot-agent is measured here: the same events with both, in one cluster and one
// run. Nothing is asserted of pilot-agent.
func TestFiguresBesidePilotAgent(t *testing.T) {
	rig.OnlyLong(t)
	for _, agent := range []struct{ name, annotation, program string }{{"holdfast", withHoldfast, "holdfast"}, {"pilot-agent", withPilotAgent, "pilot-agent"}} {
		t.Run(agent.name, func(t *testing.T) {
			m := newMesh(t, "figures-"+agent.name)
			m.deploy("client", 1, withHoldfast)
			m.RolledOut("client")
			began := time.Now()
			m.deploy("web", 2, agent.annotation)
			m.RolledOut("web")
			t.Logf("two pods Ready after %.1f s", time.Since(began).Seconds())
			m.succeeds("client", "web")
			time.Sleep(10 * time.Second) // what a start leaves to do
			t.Logf("%s", m.usage(agent.program, time.Minute, "idle"))
			changes := m.churn(func() { t.Logf("%s", m.usage(agent.program, 30*time.Second, "with changes of endpoints")) })
			t.Logf("%d changes in that time", changes)
			m.figures("Istio, " + agent.name)
		})
	}
}

// figures plays the events under load.
func (m *mesh) figures(shape string) {
	m.Helper()
	play := func(name string, happens func()) {
		m.Helper()
		m.Play(shape, selector("web"), m.load("client", "web"), rig.Event{Name: name, Measured: true, Happens: happens})
	}
	play("rolling update", func() {
		m.Kubectl("rollout", "restart", "deployment/web")
		m.RolledOut("web")
	})
	play("sidecar killed (-9)", func() {
		pod := m.Pod(selector("web"))
		m.Signal("KILL", m.Process(pod, "istio-proxy"))
		m.restarted(pod)
	})
	m.Kubectl("rollout", "restart", "deployment/web") // or the kubelet waits before it starts it again
	m.RolledOut("web")
	play("istiod killed, for 30 s", func() {
		m.istiod(0)
		time.Sleep(30 * time.Second)
	})
	play("both sidecars killed (-9) while istiod is away, 30 s", func() {
		pods := m.Pods(selector("web"))
		m.Signal("KILL", m.Process(pods[0], "istio-proxy"), m.Process(pods[1], "istio-proxy"))
		time.Sleep(30 * time.Second)
	})
	play("istiod back", func() {
		m.istiod(1)
		m.AllReady(selector("web"), 2)
	})
}

// usage says what the agent and the Envoy of one pod need of memory, and of CPU time in a while.
func (m *mesh) usage(program string, while time.Duration, when string) string {
	m.Helper()
	first := m.Process(m.Pod(selector("web")), "istio-proxy")
	processes := map[string]int{program: first, "Envoy": m.Child(first, "envoy")}
	before := make(map[string]float64)
	for name, pid := range processes {
		before[name] = m.cpu(pid)
	}
	time.Sleep(while)
	var text []string
	for _, name := range []string{program, "Envoy"} {
		pid := processes[name]
		text = append(text, fmt.Sprintf("%s %.1f MiB, %.2f %% of a CPU", name, m.memory(pid), 100*(m.cpu(pid)-before[name])/while.Seconds()))
	}
	return when + ": " + strings.Join(text, "; ")
}

// cpu returns the CPU time of a process, in seconds.
func (m *mesh) cpu(pid int) float64 {
	m.Helper()
	stat, err := rig.Node.Run("cat", fmt.Sprintf("/proc/%d/stat", pid))
	m.Check(err)
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // from the state on, which is field 3
	user, err := strconv.ParseFloat(fields[11], 64)
	m.Check(err)
	system, err := strconv.ParseFloat(fields[12], 64)
	m.Check(err)
	return (user + system) / 100 // a clock tick is 10 ms on Linux
}

// memory returns the resident memory of a process, in MiB.
func (m *mesh) memory(pid int) float64 {
	m.Helper()
	status, err := rig.Node.Run("cat", fmt.Sprintf("/proc/%d/status", pid))
	m.Check(err)
	for line := range strings.Lines(status) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			m.Check(err)
			return kib / 1024
		}
	}
	m.Fatalf("no VmRSS in\n%s", status)
	return 0
}

// churn does something while the endpoints of a ServiceEntry change, and returns how often they did.
func (m *mesh) churn(do func()) (changes int) {
	m.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ; ; changes++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			if rig.Node.Apply(fmt.Sprintf(churning, changes%250+1), "--namespace", m.Name) != nil {
				return
			}
		}
	}()
	do()
	close(stop)
	<-done
	return changes
}

const churning = `{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: churn}, spec: {
hosts: [churn.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.98.0.%d}]}}`
