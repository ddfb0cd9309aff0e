package register

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

const group = `{apiVersion: networking.istio.io/v1, kind: WorkloadGroup, metadata: {name: web, namespace: shop}, spec: {
  metadata: {labels: {app: web, tier: group}, annotations: {a: b}},
  template: {serviceAccount: web, ports: {http: 8080}, labels: {tier: template, version: v1}, network: n1, weight: 7}}}`

// rig is a Registrar of a store, with what the registries were told.
type rig struct {
	*testing.T
	store *config.Memory
	*Registrar
	seen []string
}

func on(t *testing.T, test func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, store: config.NewMemory()}
		r.Registrar = New(r.store, slog.New(slog.DiscardHandler))
		r.RegisterHandler(config.WorkloadEntry, func(e config.Event) {
			address := func(c *config.Config) string {
				if c == nil {
					return "none"
				}
				return c.Spec.(*networking.WorkloadEntry).GetAddress()
			}
			r.seen = append(r.seen, fmt.Sprintf("%s: %s > %s", e.Key().Name, address(e.Old), address(e.New)))
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.store.Run(ctx) }()
		test(r)
		stop()
		<-ended
	})
}

func (r *rig) put(document string) {
	r.Helper()
	docs, broken := config.Read("test.yaml", []byte(document))
	if broken != nil || config.Invalid(docs[0].Problems) {
		r.Fatal(broken, docs)
	}
	c := docs[0].Config
	if old := r.store.Get(c.Meta.Key); old != nil {
		c.ResourceVersion = old.ResourceVersion
		if _, err := r.store.Update(context.Background(), c); err != nil {
			r.Fatal(err)
		}
	} else if _, err := r.store.Create(context.Background(), c); err != nil {
		r.Fatal(err)
	}
	synctest.Wait()
}

func (r *rig) delete(kind config.Kind, name string) {
	r.Helper()
	if err := r.store.Delete(context.Background(), config.Key{Kind: kind, Namespace: "shop", Name: name}, ""); err != nil {
		r.Fatal(err)
	}
	synctest.Wait()
}

// want checks what the registries were told since the last call.
func (r *rig) want(want ...string) {
	r.Helper()
	synctest.Wait()
	r.events.Lock() // as while handlers are called
	defer r.events.Unlock()
	if got := strings.Join(r.seen, "\n"); got != strings.Join(want, "\n") {
		r.Errorf("seen:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	r.seen = nil
}

func member1() *proxy.Proxy {
	return &proxy.Proxy{
		Node: "vm-1", Namespace: "shop", ServiceAccount: "web", Authenticated: true, AutoRegisterGroup: "web",
		IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, GivenLabels: map[string]string{"version": "v2"},
	}
}

func TestAConnectedProxyIsAWorkloadOfItsGroup(t *testing.T) {
	on(t, func(r *rig) {
		r.put(group)
		var entry *config.Config
		r.RegisterHandler(config.WorkloadEntry, func(e config.Event) { entry = e.New })
		r.Connect(member1(), 1)
		r.want("web-10.0.0.1: none > 10.0.0.1")
		spec := entry.Spec.(*networking.WorkloadEntry)
		got := fmt.Sprintf("%v %v %v %s %v %s %d", entry.Labels, spec.Labels, entry.Annotations, spec.ServiceAccount, spec.Ports, spec.Network, spec.Weight)
		const labels = "map[app:web tier:group version:v2] "
		if want := labels + labels + "map[a:b istio.io/autoRegistrationGroup:web] web map[http:8080] n1 7"; got != want {
			t.Errorf("entry %s\nwant  %s", got, want)
		}
	})
}

func TestAWorkloadStaysForATimeOfGrace(t *testing.T) {
	on(t, func(r *rig) {
		r.put(group)
		p := member1()
		r.Connect(p, 1)
		r.Connect(p, 2) // a second stream, such as that of the connection after the next
		r.seen = nil
		r.Disconnect(p, 1)
		time.Sleep(2 * Grace)
		r.want()
		r.Disconnect(p, 2)
		time.Sleep(Grace - time.Second)
		r.Connect(p, 3)
		time.Sleep(2 * Grace)
		r.want()
		r.Disconnect(p, 3)
		time.Sleep(Grace + time.Second)
		r.want("web-10.0.0.1: 10.0.0.1 > none")
		r.Disconnect(p, 3)
		time.Sleep(2 * Grace)
		r.want()
	})
}

func TestOnlyAProxyWithTheIdentityOfTheGroupRegisters(t *testing.T) {
	for name, change := range map[string]func(*proxy.Proxy){
		"not authenticated": func(p *proxy.Proxy) { p.Authenticated = false },
		"another account":   func(p *proxy.Proxy) { p.ServiceAccount = "thief" },
		"another namespace": func(p *proxy.Proxy) { p.Namespace = "store" },
		"no such group":     func(p *proxy.Proxy) { p.AutoRegisterGroup = "other" },
		"no group":          func(p *proxy.Proxy) { p.AutoRegisterGroup = "" },
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(r *rig) {
				r.put(group)
				p := member1()
				change(p)
				r.Connect(p, 1)
				r.want()
				r.Disconnect(p, 1)
				time.Sleep(2 * Grace)
				r.want()
			})
		})
	}
}

func TestTheGroupMayComeLaterChangeAndGo(t *testing.T) {
	on(t, func(r *rig) {
		r.Connect(member1(), 1)
		r.want()
		r.put(group)
		r.want("web-10.0.0.1: none > 10.0.0.1")
		r.put(strings.Replace(group, "weight: 7", "weight: 8", 1))
		r.want("web-10.0.0.1: 10.0.0.1 > 10.0.0.1")
		r.put(strings.Replace(group, "serviceAccount: web", "serviceAccount: other", 1))
		r.want("web-10.0.0.1: 10.0.0.1 > none")
		r.put(group)
		r.want("web-10.0.0.1: none > 10.0.0.1")
		r.delete(config.WorkloadGroup, "web")
		r.want("web-10.0.0.1: 10.0.0.1 > none")
	})
}

func TestADocumentHasPrecedenceOverARegisteredWorkload(t *testing.T) {
	const document = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: web-10.0.0.1, namespace: shop}, spec: {address: 10.0.0.9}}`
	on(t, func(r *rig) {
		r.put(group)
		r.Connect(member1(), 1)
		r.put(document)
		r.put(strings.Replace(document, "10.0.0.9", "10.0.0.8", 1))
		r.want("web-10.0.0.1: none > 10.0.0.1", "web-10.0.0.1: 10.0.0.1 > 10.0.0.9", "web-10.0.0.1: 10.0.0.9 > 10.0.0.8")
		r.put(strings.Replace(group, "weight: 7", "weight: 8", 1))
		r.want()
		r.delete(config.WorkloadEntry, "web-10.0.0.1")
		r.want("web-10.0.0.1: 10.0.0.8 > 10.0.0.1")
	})
}

func TestNobodyTakesTheAddressOfAWorkloadThatHasRegistered(t *testing.T) {
	on(t, func(r *rig) {
		r.put(strings.Replace(group, "serviceAccount: web, ", "", 1))
		r.Connect(member1(), 1)
		r.want("web-10.0.0.1: none > 10.0.0.1")
		other, stranger := member1(), member1()
		other.ServiceAccount, stranger.Authenticated = "other", false
		for _, p := range []*proxy.Proxy{other, stranger} {
			r.Connect(p, 1)
			r.want()
		}
		r.Disconnect(stranger, 1)
		time.Sleep(2 * Grace)
		r.want()
		// Once the first one is gone, the other one has the address, with the same endpoint.
		r.Disconnect(member1(), 1)
		time.Sleep(2 * Grace)
		r.want()
		if m := r.holders[keyOf(other)]; m == nil || m.account != "other" || len(r.members) != 1 {
			t.Errorf("members %v", r.members)
		}
	})
}

func TestWorkloadsSurviveARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workloads.json")
	run := func(r *rig) (stop func()) {
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
		r.put(group)
		p := member1()
		p.Locality = &corev3.Locality{Region: "r", Zone: "z"}
		r.Connect(p, 1)
		thief := member1()
		thief.ServiceAccount = "thief"
		r.Connect(thief, 1)
		time.Sleep(time.Second)
		stop()
	})
	on(t, func(r *rig) {
		stop := run(r)
		defer stop()
		r.put(group)
		r.want("web-10.0.0.1: none > 10.0.0.1")
		if m := r.holders[keyOf(member1())]; m == nil || m.entry.Spec.(*networking.WorkloadEntry).GetLocality() != "r/z" || m.entry.Labels["version"] != "v2" || len(r.members) != 1 {
			t.Errorf("members %v", r.members)
		}
		time.Sleep(RestartGrace - time.Second)
		p := member1()
		p.Locality = &corev3.Locality{Region: "r", Zone: "z"}
		r.Connect(p, 1)
		time.Sleep(2 * RestartGrace)
		r.want()
	})
	on(t, func(r *rig) {
		stop := run(r)
		defer stop()
		r.put(group)
		time.Sleep(RestartGrace + time.Second)
		r.want("web-10.0.0.1: none > 10.0.0.1", "web-10.0.0.1: 10.0.0.1 > none")
	})
	on(t, func(r *rig) {
		stop := run(r)
		defer stop()
		r.put(group)
		r.want()
	})
}

func TestOtherDocumentsMayMakeOtherWorkloads(t *testing.T) {
	on(t, func(r *rig) {
		r.put(group)
		r.Connect(member1(), 1)
		for text, want := range map[string]int{group: 1, strings.Replace(group, "serviceAccount: web", "serviceAccount: other", 1): 0, strings.Replace(group, "name: web", "name: renamed", 1): 0} {
			other := config.NewMemory()
			docs, _ := config.Read("other.yaml", []byte(text))
			if _, err := other.Create(context.Background(), docs[0].Config); err != nil {
				t.Fatal(err)
			}
			entries := r.Entries(other)
			if len(entries) != want {
				t.Errorf("%d workloads, want %d", len(entries), want)
			}
			for _, c := range entries {
				if _, err := other.Create(context.Background(), c); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// Finding S14: a node chooses its address, and with it as what it registers. An account has so many, and addresses that mean something
// else at each machine are refused.
func TestRegistrar_LimitsAccountsAndAddresses(t *testing.T) {
	on(t, func(r *rig) {
		r.Limit(Limits{PerAccount: 2})
		r.put(strings.Replace(group, "serviceAccount: web, ", "", 1))
		at := func(account, address string) *proxy.Proxy {
			p := member1()
			p.ServiceAccount, p.IPs = account, []netip.Addr{netip.MustParseAddr(address)}
			return p
		}
		for i, address := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "::1", "::", "fe80::1", "ff02::1", "::ffff:127.0.0.1"} {
			r.Connect(at("web", address), uint64(100+i))
		}
		r.want()
		r.Connect(at("web", "10.0.0.1"), 1)
		r.Connect(at("web", "10.0.0.2"), 2)
		r.Connect(at("web", "10.0.0.3"), 3)
		r.Connect(at("other", "10.0.0.4"), 4)
		r.want("web-10.0.0.1: none > 10.0.0.1", "web-10.0.0.2: none > 10.0.0.2", "web-10.0.0.4: none > 10.0.0.4")
		if n := r.states(); n["registered"] != 3 || n["crowded"] != 1 || n["refused"] != 9 {
			t.Errorf("%v", n)
		}
		r.Connect(at("web", "10.0.0.2"), 5) // another stream of one that has registered
		r.want()
		time.Sleep(time.Second)
		r.Connect(at("web", "10.0.0.5"), 6)
		r.Connect(at("web", "10.0.0.6"), 7)
		r.Disconnect(at("web", "10.0.0.6"), 7)
		r.Disconnect(at("web", "10.0.0.1"), 1)
		time.Sleep(2 * Grace)
		// Who has waited longest has the place, and nobody who has gone.
		r.want("web-10.0.0.1: 10.0.0.1 > none", "web-10.0.0.3: none > 10.0.0.3")
		r.Disconnect(at("web", "10.0.0.2"), 2)
		time.Sleep(2 * Grace)
		r.want() // another stream of it is there
		r.Disconnect(at("web", "10.0.0.2"), 5)
		time.Sleep(2 * Grace)
		r.want("web-10.0.0.2: 10.0.0.2 > none", "web-10.0.0.5: none > 10.0.0.5")
		r.Disconnect(at("other", "10.0.0.4"), 4)
		time.Sleep(2 * Grace)
		r.want("web-10.0.0.4: 10.0.0.4 > none")
		if n := r.states(); n["crowded"] != 0 || len(r.crowded) != 0 {
			t.Errorf("%v", n)
		}
	})
	on(t, func(r *rig) {
		r.Limit(Limits{AnyAddress: true})
		r.put(group)
		p := member1()
		p.IPs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
		r.Connect(p, 1)
		r.want("web-127.0.0.1: none > 127.0.0.1")
	})
}
