package register

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	meta "istio.io/api/meta/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// withProbe is the group with a probe.
var withProbe = strings.Replace(group, "  template:", "  probe: {httpGet: {port: 8080}},\n  template:", 1)

// conditions lets a rig see the conditions of WorkloadEntries in place of their addresses.
func (r *rig) conditions() {
	r.RegisterHandler(config.WorkloadEntry, func(e config.Event) {
		r.seen = r.seen[:len(r.seen)-1] // what the rig has added
		show := func(c *config.Config) string {
			if c == nil {
				return "none"
			}
			status, ok := c.Status.(*meta.IstioStatus)
			if !ok {
				return "not checked" + c.Annotations[service.AnnotationHealthChecks]
			}
			condition := status.GetConditions()[0]
			return strings.TrimSpace(fmt.Sprintf("%s %s=%s %s", c.Annotations[service.AnnotationHealthChecks], condition.GetType(), condition.GetStatus(), condition.GetMessage()))
		}
		r.seen = append(r.seen, show(e.Old)+" > "+show(e.New))
	})
}

const awaits = "true Healthy=Unknown no report has come yet"

func TestAWorkloadWithAProbeIsHealthyOnceItsAgentSaysSo(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(withProbe)
		p := member1()
		r.Connect(p, 1)
		r.want("none > " + awaits)
		r.Report(p, 1, true, "")
		r.want(awaits + " > true Healthy=True")
		r.Report(p, 1, true, "")
		r.want()
		time.Sleep(time.Minute)
		r.Report(p, 1, false, "refused")
		r.want("true Healthy=True > true Healthy=False refused")
		time.Sleep(time.Minute)
		r.Report(p, 1, true, "")
		r.want("true Healthy=False refused > true Healthy=True")
	})
}

func TestAProbeOfTheProxyConfigCountsLikeThatOfTheGroup(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(group)
		p := member1()
		p.HasReadinessProbe = true
		r.Connect(p, 1)
		r.want("none > " + awaits)
	})
}

func TestAWorkloadWithoutAProbeIsHealthyUntilAReportSaysOtherwise(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(group)
		p := member1()
		r.Connect(p, 1)
		r.want("none > not checked")
		r.Report(p, 1, false, "refused")
		r.want("not checked > true Healthy=False refused")
		// It connects again with an agent that does not report any more.
		r.Connect(p, 2)
		r.Disconnect(p, 1)
		time.Sleep(silence - time.Second)
		r.want()
		time.Sleep(2 * time.Second)
		r.want("true Healthy=False refused > not checked")
	})
}

// The annotation in a group would take a workload without a probe away for ever: no condition says that it is healthy.
func TestAGroupDoesNotSayThatHealthIsChecked(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(strings.Replace(group, "annotations: {", `annotations: {proxy.istio.io/health-checks-enabled: "true", istio.io/autoRegistrationGroup: other, `, 1))
		r.Connect(member1(), 1)
		r.want("none > not checked")
	})
}

func TestHealthIsKeptOverAReconnect(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(withProbe)
		p := member1()
		r.Connect(p, 1)
		r.Report(p, 1, false, "refused")
		r.seen = nil
		r.Disconnect(p, 1)
		time.Sleep(Grace - time.Second)
		r.Connect(p, 2)
		time.Sleep(2 * silence)
		r.want()
		r.Report(p, 2, true, "")
		r.want("true Healthy=False refused > true Healthy=True")
		// What arrives late on the stream before says nothing.
		r.Report(p, 1, false, "late")
		time.Sleep(time.Minute)
		r.want()
		// A workload that was gone for longer than that is a new one.
		r.Disconnect(p, 2)
		time.Sleep(Grace + time.Second)
		r.Connect(p, 3)
		r.want("true Healthy=True > none", "none > "+awaits)
	})
}

// A second stream of a proxy, such as that of an agent that takes over, does not silence the first one: neither while nothing
// is reported on it, nor when it has ended.
func TestASecondStreamDoesNotSilenceTheFirstOne(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(group)
		p := member1()
		r.Connect(p, 1)
		r.Report(p, 1, false, "refused")
		r.seen = nil
		r.Connect(p, 2)
		time.Sleep(2 * silence) // the agent of the first one has reported, and is still there
		r.want()
		r.Report(p, 1, true, "")
		r.want("true Healthy=False refused > true Healthy=True")
		time.Sleep(healthInterval)
		r.Report(p, 2, false, "says the second one")
		r.want("true Healthy=True > true Healthy=False says the second one")
		time.Sleep(healthInterval)
		r.Report(p, 1, true, "")
		r.want()
		r.Disconnect(p, 2)
		r.Report(p, 1, true, "")
		r.want("true Healthy=False says the second one > true Healthy=True")
	})
}

func TestAReportMayComeBeforeTheRegistration(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		p := member1()
		r.Report(p, 1, true, "") // nobody is connected
		r.Connect(p, 1)
		r.Report(p, 1, true, "")
		r.want()
		r.put(withProbe)
		r.want("none > true Healthy=True")
	})
}

func TestOnlyTheProxyOfARegistrationReportsItsHealth(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(strings.Replace(withProbe, "serviceAccount: web, ", "", 1))
		p := member1()
		r.Connect(p, 1)
		r.Report(p, 1, true, "")
		r.seen = nil
		other, stranger, elsewhere := member1(), member1(), member1()
		other.ServiceAccount, stranger.Authenticated, elsewhere.Namespace = "other", false, "store"
		for i, who := range []*proxy.Proxy{other, stranger, elsewhere} {
			connection := uint64(2 + i)
			r.Connect(who, connection)
			r.Report(who, connection, false, "not yours")
			time.Sleep(time.Minute)
			r.want()
		}
		if w := r.Workload(p); w.Health.State != Healthy || !w.Checked || w.Refused != "" || w.Name != "shop/web-10.0.0.1" {
			t.Errorf("workload %+v", w)
		}
		if w := r.Workload(other); !strings.Contains(w.Refused, "vm-1 of the service account web") {
			t.Errorf("workload of another proxy %+v", w)
		}
	})
}

func TestAWorkloadThatFlapsChangesOnceInAnInterval(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(withProbe)
		p := member1()
		r.Connect(p, 1)
		r.seen = nil
		for i := range 101 {
			r.Report(p, 1, i%2 == 0, "flaps")
			time.Sleep(healthInterval / 10)
		}
		r.events.Lock()
		n := len(r.seen)
		r.events.Unlock()
		if n > 11 {
			t.Errorf("%d changes in 10 intervals", n)
		}
		time.Sleep(2 * healthInterval)
		if w := r.Workload(p); w.Health.State != Healthy {
			t.Errorf("the last report was healthy, and the workload is %+v", w.Health)
		}
	})
}

func TestAWorkloadThatIsAnEndpointStaysOneWhenItsGroupGetsAProbe(t *testing.T) {
	on(t, func(r *rig) {
		r.conditions()
		r.put(group)
		p := member1()
		r.Connect(p, 1)
		r.seen = nil
		r.put(withProbe)
		const assumed = "true Healthy=True no report has come yet; the workload was an endpoint before it had a probe"
		r.want("not checked > " + assumed)
		r.Report(p, 1, false, "refused")
		r.want(assumed + " > true Healthy=False refused")
	})
}

func TestHealthSurvivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workloads.json")
	run := func(r *rig) (stop func()) {
		r.conditions()
		if err := r.Load(file); err != nil {
			r.Fatal(err)
		}
		ctx, cancel := context.WithCancel(r.Context())
		ended := make(chan error)
		go func() { ended <- r.Keep(ctx) }()
		return func() {
			cancel()
			<-ended
		}
	}
	on(t, func(r *rig) {
		stop := run(r)
		defer stop()
		r.put(withProbe)
		r.Connect(member1(), 1)
		r.Report(member1(), 1, true, "")
		r.seen = nil
	})
	on(t, func(r *rig) { // of the next process the first stream is the first one, too
		stop := run(r)
		defer stop()
		r.put(withProbe)
		r.want("none > true Healthy=True")
		time.Sleep(RestartGrace - time.Second)
		r.Connect(member1(), 1)
		time.Sleep(2 * RestartGrace)
		r.want()
		r.Report(member1(), 1, false, "refused")
		r.want("true Healthy=True > true Healthy=False refused")
	})
	on(t, func(r *rig) {
		stop := run(r)
		defer stop()
		r.put(withProbe)
		r.want("none > true Healthy=False refused")
	})
}

// The file of a version that knew no health: what was an endpoint stays one.
func TestAFileWithoutHealthHasEndpoints(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workloads.json")
	read := func(r *rig, health string) error {
		text := fmt.Sprintf(`[{"node": "vm-1", "group": "web", "namespace": "shop", "account": "web", "address": "10.0.0.1"%s}]`, health)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			r.Fatal(err)
		}
		return r.Load(file)
	}
	on(t, func(r *rig) {
		r.conditions()
		if err := read(r, ""); err != nil {
			t.Fatal(err)
		}
		r.put(withProbe)
		r.want("none > true Healthy=True no report has come yet; the workload was an endpoint before it had a probe")
	})
}

// A damaged file does not keep the control plane from starting, and is not lost.
func TestADamagedFileIsSetAside(t *testing.T) {
	for _, text := range []string{"", "[", "{}", `[{"address": "nowhere"}]`, `[{"address": "10.0.0.1", "group": "web", "namespace": "shop"}, {"address": "10.0.0.2", "health": "fine"}]`} {
		file := filepath.Join(t.TempDir(), "workloads.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		on(t, func(r *rig) {
			if err := r.Load(file); err != nil {
				t.Errorf("%s: %v", text, err)
			}
			if len(r.members) > 0 {
				t.Errorf("%s: %d workloads", text, len(r.members))
			}
		})
		if got, err := os.ReadFile(file + ".damaged"); err != nil || string(got) != text {
			t.Errorf("set aside: %q, %v", got, err)
		}
	}
}

func TestTheMessageOfAReportIsShortAndPrintable(t *testing.T) {
	for _, tc := range []struct{ name, message, want string }{
		{"plain", "status 503", "status 503"},
		{"lines and control characters", "a\nb\x1b[31m\tc\x00", "a b [31m c"},
		{"not UTF-8", "a\xff\xfeb", "a b"},
		{"nothing", " \n", "the report has no reason"},
		{"long", strings.Repeat("é", 1000), strings.Repeat("é", 254) + "…"},
		{"very long", strings.Repeat("\n", 1<<20) + "x", "the report has no reason"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			on(t, func(r *rig) {
				r.put(withProbe)
				r.Connect(member1(), 1)
				r.Report(member1(), 1, false, tc.message)
				if got := r.Workload(member1()).Health.Message; got != tc.want {
					t.Errorf("message %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// What a document describes has the health that the document says, and not that of the report.
func TestAWorkloadBehindADocumentIsShownAsNotRegistered(t *testing.T) {
	on(t, func(r *rig) {
		r.put(withProbe)
		r.Connect(member1(), 1)
		r.Report(member1(), 1, false, "refused")
		r.put(`{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: web-10.0.0.1, namespace: shop}, spec: {address: 10.0.0.1}}`)
		if w := r.Workload(member1()); w.Refused != "a document has this name, and takes precedence" {
			t.Errorf("workload %+v", w)
		}
	})
}

func TestAHealthIsSinceItsStateBegan(t *testing.T) {
	on(t, func(r *rig) {
		r.put(withProbe)
		p := member1()
		r.Connect(p, 1)
		r.Report(p, 1, false, "refused")
		began := time.Now()
		time.Sleep(time.Minute)
		r.Report(p, 1, false, "another reason")
		if h := r.Workload(p).Health; !h.Since.Equal(began) || h.Message != "another reason" {
			t.Errorf("health %+v, want since %s", h, began)
		}
	})
}

func TestRegisteredWorkloadsAreListed(t *testing.T) {
	on(t, func(r *rig) {
		r.put(group)
		r.Connect(member1(), 1)
		for namespace, want := range map[string]int{"": 1, "shop": 1, "store": 0} {
			if got := r.WorkloadEntries(namespace); len(got) != want {
				t.Errorf("%q: %d workloads, want %d", namespace, len(got), want)
			}
		}
		r.Disconnect(member1(), 1)
		time.Sleep(2 * Grace)
		if got := r.WorkloadEntries(""); len(got) != 0 {
			t.Errorf("%d workloads are left", len(got))
		}
	})
}
