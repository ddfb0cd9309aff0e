package etcd

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// manual is docs/mesh-production.md.
type manual string

func readManual(t testing.TB) manual {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(envoytest.Root(t), "docs", "mesh-production.md"))
	if err != nil {
		t.Fatal(err)
	}
	return manual(text)
}

var fence = regexp.MustCompile("(?m)^( *)```([a-z].*)\n((?:.*\n)*?) *```$")

// blocks returns the code of the page by the info strings of the blocks, such as "sh backup".
func (m manual) blocks(t testing.TB) map[string]string {
	t.Helper()
	blocks := make(map[string]string)
	for _, b := range fence.FindAllStringSubmatch(string(m), -1) {
		if _, twice := blocks[b[2]]; twice {
			t.Errorf("there are two blocks %q", b[2])
		}
		blocks[b[2]] = regexp.MustCompile("(?m)^"+b[1]).ReplaceAllString(b[3], "")
	}
	return blocks
}

// unit returns the command of the unit of systemd.
func unit(t testing.TB, text string) []string {
	t.Helper()
	_, command, ok := strings.Cut(text, "\nExecStart=")
	if !ok {
		t.Fatalf("no ExecStart in\n%s", text)
	}
	command, _, _ = strings.Cut(strings.ReplaceAll(command, "\\\n", " "), "\n")
	return strings.Fields(command)
}

// site is what the page describes, on this machine: an etcd of three members with TLS and users, two servers, an agent and an
// Envoy.
type site struct {
	*rig.Rig
	blocks  map[string]string
	ran     map[string]bool // blocks
	members [3]*seat
	servers []*server
	auth    bool   // etcd has users
	token   string // of the cluster
	ports   map[string]int
}

// seat is one of the members.
type seat struct {
	client, peer, metrics string
	process               *testbed.Process
}

func newSite(t *testing.T) *site {
	s := &site{Rig: rig.New(t), blocks: readManual(t).blocks(t), ran: make(map[string]bool), token: "holdfast-1", ports: make(map[string]int)}
	for i := range s.members {
		s.members[i] = &seat{client: s.FreeAddr(), peer: s.FreeAddr(), metrics: s.FreeAddr()}
	}
	for _, dir := range []string{"etc/etcd", "etc/holdfast-mesh", "var/backups/etcd", "var/lib", "srv/mesh"} {
		s.Check(os.MkdirAll(s.Path(dir), 0o700))
	}
	s.Check(os.Symlink(meshBinary(t), s.Path("holdfast-mesh")))
	ca := pkitest.Root(t, "site", time.Now())
	s.certificate(ca, "etc/etcd/server.pem", "etc/etcd/server-key.pem", named("etcd"))
	s.certificate(ca, "etc/holdfast-mesh/tls.pem", "etc/holdfast-mesh/tls-key.pem", named("holdfast-mesh"))
	s.certificate(ca, "web.pem", "web-key.pem", pkitest.URIs("spiffe://cluster.local/ns/shop/sa/web"))
	for _, name := range []string{"etc/etcd/ca.pem", "etc/holdfast-mesh/etcd-ca.pem", "etc/holdfast-mesh/proxies-ca.pem"} {
		s.file(name, string(pki.EncodeCerts(ca.Roots())))
	}
	return s
}

func (s *site) file(name, content string) {
	s.Helper()
	s.Check(os.WriteFile(s.Path(name), []byte(content), 0o600))
}

func (s *site) certificate(ca *pkitest.CA, cert, key string, option func(*x509.Certificate)) {
	s.Helper()
	pair := ca.Leaf(s, option)
	s.file(cert, string(pair.ChainPEM()))
	s.file(key, string(pair.KeyPEM()))
}

// here returns a text of the page with the addresses and directories of this site.
func (s *site) here(text string) string {
	var pairs []string
	for i, m := range s.members {
		pairs = append(pairs, fmt.Sprintf("etcd-%d.example:2379", i), m.client, fmt.Sprintf("etcd-%d.example:2380", i), m.peer)
	}
	for _, dir := range []string{"/etc/", "/var/", "/srv/"} {
		pairs = append(pairs, dir, s.Path(dir[1:])+"/")
	}
	if len(s.servers) > 0 {
		pairs = append(pairs, "127.0.0.1:15014", s.servers[0].admin)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// of returns a text of the page as it is meant for one member. Each has a directory of its own.
func (s *site) of(i int, text string) string {
	name, m := fmt.Sprintf("etcd-%d", i), s.members[i]
	return strings.NewReplacer("NAME=etcd-0\n", "", "$NAME", name, "0.0.0.0:2379", m.client, "0.0.0.0:2380", m.peer, "127.0.0.1:2381", m.metrics,
		"/var/lib/etcd", "/var/lib/"+name).Replace(text)
}

// block returns the code of a block.
func (s *site) block(name string) string {
	s.Helper()
	text, ok := s.blocks["sh "+name]
	if !ok {
		s.Fatalf("the page has no block %q", name)
	}
	s.ran[name] = true
	return text
}

// shell runs commands of the page, and returns what they print.
func (s *site) shell(commands string) string {
	s.Helper()
	setup := s.block("as root")
	if !s.auth {
		setup = regexp.MustCompile("(?m)^.*ETCDCTL_USER.*$").ReplaceAllString(setup, "")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*rig.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", s.here(setup+commands))
	cmd.WaitDelay = time.Second // for what bash has started
	cmd.Env = append(os.Environ(), "PATH="+s.Dir+":"+tools+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("%v\n%s\n%s", err, s.here(commands), out)
	}
	return string(out)
}

// does runs a block, and checks that it prints texts.
func (s *site) does(name string, texts ...string) string {
	s.Helper()
	out := s.shell(s.block(name))
	for _, text := range texts {
		if !strings.Contains(out, text) {
			s.Errorf("%s: %q is missing in\n%s", name, text, out)
		}
	}
	return out
}

// startMember starts a member of etcd as the page says it. Tokens of users expire soon, and the database is small.
func (s *site) startMember(i int, flags ...string) {
	s.Helper()
	text := strings.NewReplacer("\netcd ", "\nexec etcd ", "ttl=10m", "ttl=3s", "--quota-backend-bytes 8589934592", "--quota-backend-bytes 16777216",
		"--initial-cluster-token holdfast-1", "--initial-cluster-token "+s.token).Replace("\n" + s.of(i, s.block("etcd")))
	text = "PATH=" + tools + ":$PATH" + strings.TrimRight(s.here(text), "\n") + " --log-level error " + strings.Join(flags, " ")
	p, err := testbed.Start(fmt.Sprintf("etcd-%d", i), s.Path(fmt.Sprintf("etcd-%d.log", i)), "bash", "-euc", text)
	s.Check(err)
	s.members[i].process = p
	s.Cleanup(func() {
		p.Kill() // what it keeps is of no use to anybody
		if s.Failed() {
			s.Logf("end of the log of %s:\n%s", p.Name, p.Tail(20))
		}
	})
}

// flags returns those of a server as the page says it, with its addresses.
func (s *site) flags(i int) []string {
	s.Helper()
	argv := unit(s, s.blocks["ini"])
	text := strings.NewReplacer(":15012", s.servers[i].xds, "--health :15020", "--admin "+s.servers[i].admin, "/var/lib/holdfast-mesh", fmt.Sprintf("/var/lib/holdfast-mesh-%d", i)).Replace(strings.Join(argv[1:], " "))
	return append([]string{meshBinary(s)}, strings.Fields(s.here(text))...)
}

// fromDirectory returns flags of a server without those of etcd, which has its documents from the directory.
func (s *site) fromDirectory(args []string) (out []string) {
	out = append(out, args[:2]...)
	out = append(out, "--config", s.Path("srv/mesh"))
	for i := 2; i < len(args); i++ {
		if strings.HasPrefix(args[i], "--etcd") || args[i] == "--secret-key-file" {
			i++
			continue
		}
		out = append(out, args[i])
	}
	return out
}

// rolls starts the servers one after the other with other flags.
func (s *site) rolls(change func(args []string) []string) {
	s.Helper()
	for i, server := range s.servers {
		server.args = change(s.flags(i))
		server.restart()
	}
}

// metric waits until a metric of all servers has a value.
func (s *site) metric(name, want string) {
	s.Helper()
	for _, server := range s.servers {
		s.Check(testbed.Eventually(2*rig.Limit, func() error {
			_, body, err := testbed.Get("http://" + server.admin + "/metrics")
			if err == nil && !strings.Contains(body, "\n"+name+" "+want+"\n") {
				err = fmt.Errorf("%s is not %s:\n%s", name, want, regexp.MustCompile("(?m)^"+name+".*$").FindString(body))
			}
			return err
		}))
	}
}

// document is a service with a port of its own, at a backend.
func (s *site) document(name, backend string) string {
	s.Helper()
	if s.ports[name] == 0 {
		s.ports[name] = s.FreePort()
	}
	_, port, err := net.SplitHostPort(backend)
	s.Check(err)
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[3]s}}]
`, name, s.ports[name], port)
}

func (s *site) request(name string) testbed.Request {
	return testbed.Request{URL: fmt.Sprintf("http://127.0.0.1:%d/", s.ports[name]), Host: name + ".test"}
}

// answers waits until a service is answered by a backend.
func (s *site) answers(name, want string) {
	s.Helper()
	s.Eventually(func() error {
		status, body, err := s.request(name).Get()
		if err == nil && (status != http.StatusOK || body != want) {
			err = fmt.Errorf("%s: %d %s, want %s", name, status, body, want)
		}
		return err
	})
}

// load sends requests to a service until the function that it returns is called, which fails the test if one has failed.
func (s *site) load(name string) (stop func()) {
	s.Helper()
	tally := testbed.StartTally(s.request(name), 20*time.Millisecond, 2)
	return func() {
		s.Helper()
		s.Check(tally.More(1, rig.Limit))
		s.Check(tally.Stop())
	}
}

// apply runs holdfast-mesh apply as a user, and returns whether it has succeeded, and what it prints.
func (s *site) apply(user, namespace, documents string) (ok bool, out string) {
	s.Helper()
	s.file("apply.yaml", documents)
	cmd := exec.Command(meshBinary(s), "apply", "--etcd", "https://"+s.members[0].client, "--etcd-ca", s.Path("etc/etcd/ca.pem"),
		"--etcd-user", user, "--etcd-password-file", s.Path("etc/etcd/"+user+".password"), "-n", namespace, "-f", s.Path("apply.yaml"))
	text, err := cmd.CombinedOutput()
	return err == nil, string(text)
}

// TestTheProductionPageIsTrue runs the commands of docs/mesh-production.md in the order in which a site needs them, between a
// real agent and a real Envoy under load. No request fails from the first to the last.
func TestTheProductionPageIsTrue(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.does("jwt")
	for i := range s.members {
		s.startMember(i)
	}
	s.does("healthy")
	s.does("roles", "Authentication Enabled")
	s.auth = true
	s.does("status", "is healthy")
	s.does("certificate user", "User holdfast-replica created")
	password, err := os.ReadFile(s.Path("etc/etcd/holdfast-server.password"))
	s.Check(err)
	s.file("etc/holdfast-mesh/holdfast-server.password", string(password))
	s.does("secret key")

	web, late := s.Backend("web"), s.Backend("late")
	s.file("srv/mesh/web.yaml", s.document("web", web))
	s.file("srv/mesh/secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: token, namespace: shop}\nstringData: {token: PRIVATE}\n")
	upstreams := []string{"--upstream-ca", s.Path("etc/holdfast-mesh/proxies-ca.pem"), "--upstream-cert", s.Path("web.pem"), "--upstream-key", s.Path("web-key.pem")}
	for i := range 2 {
		server := &server{fleet: &fleet{store: &store{Rig: s.Rig}}, name: fmt.Sprintf("holdfast-mesh-%d", i), xds: s.FreeAddr(), admin: s.FreeAddr()}
		s.servers = append(s.servers, server)
		server.args = s.fromDirectory(s.flags(i))
		server.start()
		upstreams = append(upstreams, "--upstream", server.xds)
	}
	agent := s.StartAgent("agent", upstreams...)
	envoy := agent.Envoy("envoy", "delta", as("web-1"), func(b *bootstrapv3.Bootstrap) {
		b.Node.Metadata.Fields["SERVICE_ACCOUNT"] = structpb.NewStringValue("web")
	})
	s.answers("web", "web")
	stop := s.load("web")

	s.movesToEtcd()
	s.hasTenants()
	s.changesTheKey()
	s.updatesEtcd()
	s.does("backup", "Snapshot saved at", "REVISION")
	s.does("export", "documents copied to ", "1 Secrets left out")
	s.file("srv/mesh/late.yaml", s.document("late", late))
	s.does("apply", "ServiceEntry shop/late created", "ServiceEntry shop/web unchanged")
	s.answers("late", "late")
	stopLate := s.load("late")
	s.restores()
	s.answers("late", "late")
	s.losesAMember()
	s.fillsTheDatabase(s.document("late", web))
	s.answers("late", "web")
	s.rolls(func(args []string) []string { return args })
	s.does("ages")
	s.does("wait")
	s.has("replicas", "SERVING", 2)
	s.alertsAreOnWhatThereIs()

	stop()
	stopLate()
	s.NeverRejected("envoy", envoy)
	for name := range s.blocks {
		if name, ok := strings.CutPrefix(name, "sh "); ok && !s.ran[name] {
			t.Errorf("no test runs the block %q", name)
		}
	}
}

// movesToEtcd moves the servers from the directory.
func (s *site) movesToEtcd() {
	s.Helper()
	if out := s.does("migrate"); !strings.HasSuffix(out, "2 documents copied to etcd, 0 were there\n") {
		s.Errorf("after migrate, diff shows\n%s", out)
	}
	s.rolls(func(args []string) []string { return args })
	s.metric("holdfast_mesh_store_up", "1")
	s.answers("web", "web")
}

// hasTenants shows that a tenant writes what the page gives it, and nothing else.
func (s *site) hasTenants() {
	s.Helper()
	other := s.document("other", "127.0.0.1:1")
	if ok, out := s.apply("shop", "shop", other); !ok || !strings.Contains(out, "ServiceEntry shop/other created") {
		s.Errorf("a tenant: %s", out)
	}
	filter := "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: a, namespace: shop}\nspec: {configPatches: []}\n"
	if out := s.shell("etcdctl role get holdfast-server"); !strings.Contains(out, "/holdfast-replicas/") {
		s.Errorf("the role of a server:\n%s", out)
	}
	for what, c := range map[string][3]string{
		"the namespace of another":   {"shop", "bank", strings.ReplaceAll(other, "namespace: shop", "namespace: bank")},
		"a kind that is not granted": {"shop", "shop", filter},
		"a server":                   {"holdfast-server", "shop", s.document("third", "127.0.0.1:1")},
	} {
		if ok, out := s.apply(c[0], c[1], c[2]); ok || !strings.Contains(out, "does not permit it") {
			s.Errorf("%s: %s", what, out)
		}
	}
	s.Eventually(func() error { // it reaches the servers, whose tokens have expired by now
		for _, server := range s.servers {
			out, err := exec.Command(meshBinary(s), "get", "ServiceEntry", "shop/other", "--admin", server.admin).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %s", server.name, out)
			}
		}
		return nil
	})
}

// changesTheKey gives the Secrets another key.
func (s *site) changesTheKey() {
	s.Helper()
	old, latest := s.Path("etc/holdfast-mesh/secrets.key"), s.Path("etc/holdfast-mesh/secrets-2.key")
	s.does("new key")
	s.rolls(func(args []string) []string {
		at := slices.Index(args, "--secret-key-file")
		return slices.Insert(slices.Clone(args), at, "--secret-key-file", latest)
	})
	before, err := os.ReadFile(old)
	s.Check(err)
	s.does("reencrypt", "1 Secrets encrypted with the first key, 0 were")
	s.does("old key")
	after, err := os.ReadFile(old)
	s.Check(err)
	if string(after) == string(before) {
		s.Error("the key is the same")
	}
	s.rolls(func(args []string) []string { return args })
	s.metric("holdfast_mesh_store_invalid_documents", "0")
	for _, server := range s.servers {
		out, err := exec.Command(meshBinary(s), "get", "Secret", "shop/token", "--admin", server.admin).CombinedOutput()
		if err != nil {
			s.Errorf("%s: %s", server.name, out)
		}
	}
}

// updatesEtcd starts the members one after the other, and defragments them.
func (s *site) updatesEtcd() {
	s.Helper()
	for i, m := range s.members {
		s.Check(m.process.Signal(syscall.SIGTERM)) // etcd ends itself by the signal, which Stop would take for a crash
		<-m.process.Exited()
		s.startMember(i)
		s.does("healthy")
	}
	s.does("defragment", "Finished defragmenting")
	s.metric("holdfast_mesh_store_up", "1")
}

// restores loses all members, and restores the backup, which lacks one document.
func (s *site) restores() {
	s.Helper()
	for _, m := range s.members {
		m.process.Kill()
	}
	s.metric("holdfast_mesh_store_up", "0")
	for i := range s.members {
		s.shell(s.of(i, s.block("restore")))
	}
	s.token = "holdfast-2"
	for i := range s.members {
		s.startMember(i)
	}
	s.metric("holdfast_mesh_store_removals_held", "1")
	s.metric("holdfast_mesh_store_up", "1")
	s.does("held", "ServiceEntry shop/late", "lacks it", "host", "late.test")
	for _, server := range s.servers {
		if text, err := os.ReadFile(server.process.Log); err != nil || !strings.Contains(string(text), "the store was restored from a backup, or is another one") {
			s.Errorf("%s does not log it: %v", server.name, err)
		}
	}
	s.servers[1].restart() // it does not forget that
	s.metric("holdfast_mesh_store_removals_held", "1")
	s.does("apply", "ServiceEntry shop/late created", "ServiceEntry shop/web unchanged")
	s.metric("holdfast_mesh_store_removals_held", "0")
}

// losesAMember replaces the last member.
func (s *site) losesAMember() {
	s.Helper()
	s.members[2].process.Kill()
	text := s.of(2, s.block("replace"))
	s.shell(text)
	s.startMember(2, "--initial-cluster-state", "existing")
	s.does("healthy")
}

// fillsTheDatabase lets etcd refuse to write a document, until it was cleared.
func (s *site) fillsTheDatabase(document string) {
	s.Helper()
	s.file("large", strings.Repeat("x", 1<<20))
	s.shell("for i in {1..30}; do etcdctl put /large < " + s.Path("large") + " || break; done 2>/dev/null >/dev/null\netcdctl del /large 2>/dev/null || true\n")
	if out := s.shell("etcdctl alarm list"); !strings.Contains(out, "NOSPACE") {
		s.Fatalf("the database is not full: %s", out)
	}
	if ok, out := s.apply("holdfast-admin", "shop", document); ok || !strings.Contains(out, "database is full") {
		s.Errorf("a full database: %s", out)
	}
	s.does("nospace")
	if ok, out := s.apply("holdfast-admin", "shop", document); !ok {
		s.Errorf("after it was cleared: %s", out)
	}
}

// has waits until a block prints a word so many times.
func (s *site) has(name, word string, times int) {
	s.Helper()
	s.Eventually(func() error {
		if out := s.shell(s.block(name)); strings.Count(out, word) != times {
			return fmt.Errorf("%s prints\n%s", name, out)
		}
		return nil
	})
}

// alertsAreOnWhatThereIs fails if a rule, or the page, is about a metric that neither etcd nor a server has.
func (s *site) alertsAreOnWhatThereIs() {
	s.Helper()
	rules, err := os.ReadFile(filepath.Join(envoytest.Root(s), "deploy", "monitoring", "mesh-rules.yaml"))
	s.Check(err)
	names := regexp.MustCompile(`\b(?:etcd|pilot|holdfast_mesh)_[a-z_]+`).FindAllString(string(rules)+string(readManual(s)), -1)
	if len(names) < 10 {
		s.Errorf("the rules and the page name %q", names)
	}
	s.Eventually(func() error { // some are there once a proxy is connected
		all := ""
		for _, addr := range []string{s.members[0].metrics, s.servers[0].admin, s.servers[1].admin} {
			_, body, err := testbed.Get("http://" + addr + "/metrics")
			if err != nil {
				return err
			}
			all += "\n" + body
		}
		for _, name := range names {
			if slices.Contains([]string{"pilot_total_xds_rejects", "holdfast_mesh_clients_refused_total"}, name) {
				continue // nothing was NACKed, and nobody refused
			}
			if !strings.Contains(all, "\n# TYPE "+regexp.MustCompile(`_(bucket|count)$`).ReplaceAllString(name, "")+" ") {
				return fmt.Errorf("neither etcd nor holdfast-mesh has %s", name)
			}
		}
		return nil
	})
}

// The Deployment of the page has the flags of its unit, and waits longer than a replica drains.
func TestTheDeploymentOfTheProductionPage(t *testing.T) {
	t.Parallel()
	blocks := readManual(t).blocks(t)
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(blocks["yaml"]), &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	c := pod.Containers[0]
	argv := unit(t, blocks["ini"])
	want := strings.Join(argv[1:], " ")
	if got := regexp.MustCompile(`(--[a-z-]+)=(\S+)`).ReplaceAllString(strings.Join(c.Args, " "), "$1 $2"); got != want {
		t.Errorf("the flags are\n%s\nthose of the unit\n%s", got, want)
	}
	drain, err := time.ParseDuration(argv[slices.Index(argv, "--drain-time")+1])
	if err != nil || pod.TerminationGracePeriodSeconds == nil || time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second <= drain {
		t.Errorf("it is killed after %v, and drains for %v (%v)", pod.TerminationGracePeriodSeconds, drain, err)
	}
	stop := regexp.MustCompile(`\nTimeoutStopSec=(\S+)\n`).FindStringSubmatch(blocks["ini"])
	if limit, err := time.ParseDuration(stop[1]); err != nil || limit <= drain {
		t.Errorf("systemd kills it after %s, and it drains for %v (%v)", stop[1], drain, err)
	}
	if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil || c.ReadinessProbe.HTTPGet.Path != "/ready" || c.LivenessProbe != nil {
		t.Errorf("probes %v, %v", c.ReadinessProbe, c.LivenessProbe)
	}
	health := argv[slices.Index(argv, "--health")+1]
	if !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == c.ReadinessProbe.HTTPGet.Port.StrVal && fmt.Sprintf(":%d", p.ContainerPort) == health
	}) {
		t.Errorf("the probe asks the port %v, and --health is %s", c.ReadinessProbe.HTTPGet.Port, health)
	}
}

// The page has the keys of every kind.
func TestTheProductionPageHasTheKeysOfEveryKind(t *testing.T) {
	t.Parallel()
	page := string(readManual(t))
	for _, schema := range config.Schemas {
		resource, namespace := schema.Plural, "NAMESPACE"
		if schema.Group != "" {
			resource += "." + schema.Group
		}
		if !schema.Namespaced {
			namespace = "_"
		}
		if row := fmt.Sprintf("| `%s` | `/holdfast/%s/%s/NAME` |\n", schema.Kind.Label(), resource, namespace); !strings.Contains(page, row) {
			t.Errorf("the page lacks the row %s", row)
		}
	}
}
