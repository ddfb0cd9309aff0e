package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/seed"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/istio"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/failover"
)

// configured returns the agent's configuration that `holdfast run` makes of flags,
// variables and a file.
func configured(t *testing.T, file string, environ []string, args ...string) (cfg agent.Config, warnings []string, err error) {
	t.Helper()
	p := process{stdout: io.Discard, stderr: io.Discard, environ: environ}
	c := newCommand("run", "", "", "")
	f := &runFlags{}
	f.add(c)
	keys := map[string]bool{"dir": true, "out": true} // of other commands
	c.visitFlags(func(f *pflag.Flag) { keys[f.Name] = true })
	c.finish(p, keys)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(cli.FlagError)
	c.run = func(_ context.Context, w []string) (err error) {
		warnings = w
		err = f.complete(slog.New(slog.DiscardHandler))
		cfg = f.cfg
		return err
	}
	if file != "" {
		args = append(args, "--config", write(t, "holdfast.yaml", file))
	}
	c.SetArgs(args)
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	return cfg, warnings, c.ExecuteContext(t.Context())
}

func TestAFlagBeatsTheVariableWhichBeatsTheFile(t *testing.T) {
	const file = "upstream: [file:1]\nack-timeout: 1m\nupstream-plaintext: true\nupstream-max-message-bytes: 1\nupstream-header: {a: file}\nsocket-mode: '0600'"
	environ := []string{"HOLDFAST_UPSTREAM=env:1,env:2", "HOLDFAST_ACK_TIMEOUT=2m", "HOLDFAST_UPSTREAM_PLAINTEXT=false",
		"HOLDFAST_UPSTREAM_MAX_MESSAGE_BYTES=2", "HOLDFAST_UPSTREAM_HEADER=a=env", "HOLDFAST_SOCKET_MODE=0640", "HOLDFAST_HEALTH="}
	args := []string{"--upstream", "flag:1", "--upstream", "flag:2", "--ack-timeout", "3m", "--upstream-plaintext=true",
		"--upstream-max-message-bytes", "3", "--upstream-header", "a=flag", "--socket-mode", "0666", "--health", ":1"}
	type values struct {
		upstreams []string
		ack       time.Duration
		plain     bool
		max       int
		header    string
		mode      os.FileMode
		health    string
	}
	for _, tc := range []struct {
		name    string
		file    string
		environ []string
		args    []string
		want    values
	}{
		{"the default", "", nil, []string{"--upstream", "x:1"}, values{[]string{"x:1"}, time.Second, false, 256 << 20, "", 0o660, ":15020"}},
		{"the file", file, nil, nil, values{[]string{"file:1"}, time.Minute, true, 1, "file", 0o600, ":15020"}},
		{"the variable over the file", file, environ, nil, values{[]string{"env:1", "env:2"}, 2 * time.Minute, false, 2, "env", 0o640, ""}},
		{"the flag over both", file, environ, args, values{[]string{"flag:1", "flag:2"}, 3 * time.Minute, true, 3, "flag", 0o666, ":1"}},
		{"the flag over the variable", "", environ, args, values{[]string{"flag:1", "flag:2"}, 3 * time.Minute, true, 3, "flag", 0o666, ":1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, warnings, err := configured(t, tc.file, tc.environ, tc.args...)
			if err != nil || len(warnings) > 0 {
				t.Fatal(err, warnings)
			}
			got := values{cfg.Upstreams, cfg.Upstream.AckTimeout, cfg.Upstream.Plaintext, cfg.Upstream.MaxMessage, cfg.Upstream.Headers["a"], cfg.Socket.Mode, cfg.Admin.Health}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// pemFile writes a key to a file.
func pemFile(t *testing.T, kind string, marshal func() ([]byte, error)) string {
	t.Helper()
	der, err := marshal()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEveryFlagOfRunReachesTheAgent(t *testing.T) {
	keyFile, key := filepath.Join(t.TempDir(), "key"), bytes.Repeat([]byte{7}, 32)
	if err := os.WriteFile(keyFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	seedKey := ed25519.NewKeyFromSeed(key)
	seedKeyFile := pemFile(t, "PRIVATE KEY", func() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(seedKey) })
	seedTrustFile := pemFile(t, "PUBLIC KEY", func() ([]byte, error) { return x509.MarshalPKIXPublicKey(seedKey.Public()) })
	cfg, _, err := configured(t, "", nil,
		"--seed", "https://seeds.test/web", "--seed-trust", seedTrustFile, "--seed-max-age", "5h", "--seed-role", "role", "--seed-publish", "/web.seed",
		"--seed-publish-every", "6m", "--seed-key", seedKeyFile, "--seed-ca", "sca", "--seed-token-file", "stok",
		"--upstream", "a:1", "--upstream", "file:/x", "--upstream-protocol", "sotw", "--upstream-header", "ClusterID=K=1",
		"--upstream-max-message-bytes", "5", "--ack-timeout", "2s", "--upstream-ca", "ca", "--upstream-cert", "cert",
		"--upstream-key", "key", "--upstream-server-name", "sn", "--upstream-san", "s1,x", "--upstream-san", "s2",
		"--upstream-token-file", "tok", "--upstream-plaintext", "--socket", "/s", "--socket-mode", "600", "--socket-group", "g",
		"--allow-uid", "101", "--allow-uid", "root", "--allow-gid", "4294967294", "--allow-gid", "root",
		"--ca", "istio:istiod:15012", "--identity", "spiffe://td/web dns=web.test ip=192.0.2.1 secret=web", "--identity", "spiffe://td/api secret=api",
		"--root-secret", "roots", "--root-validator", "spiffe", "--ca-roots", "/roots.pem", "--crl", "/crl.pem", "--key-type", "rsa-3072",
		"--cert-lifetime", "12h", "--root-overlap", "13h", "--root-lead", "14s", "--istio-ca", "ica", "--istio-token-file", "itok",
		"--istio-header", "ClusterID=K", "--istio-cert-signer", "signer", "--istio-cert", "icert", "--istio-key", "ikey", "--istio-server-name", "isn", "--istio-san", "isan",
		"--certificates", `{"ca": "files:/tls", "root-secret": "other"}`, "--identity-dir", "/identity", "--secret-dir", "/etc/a", "--secret-dir", "/etc/b", "--secret-alias", "x=web",
		"--on-envoy-exit", "exit", "--start-after", "1s", "--drain-timeout", "2s", "--drain-min", "3s", "--kill-after", "4s", "--envoy-admin", "127.0.0.1:2",
		"--ready-requires", "upstream", "--takeover", "--client-linger", "5m", "--pass-through", "envoy.service.ratelimit.v3.RateLimitService", "--pass-through", "a.B", "--rest", "127.0.0.1:1", "--rest-hold", "30s", "--upstream-rest-refresh", "7s",
		"--max-streams", "1", "--max-types", "2", "--max-subscriptions", "3", "--max-request-rate", "4", "--max-request-burst", "5", "--max-any-depth", "8", "--max-groups", "33", "--max-resources", "6", "--max-resource-bytes", "7",
		"--state-dir", "/state", "--state-identity", "web", "--state-key-file", keyFile, "--state-key-file", keyFile, "--fallback-for", "20m", "--history-bytes", "77", "--restore-after", "3s", "--max-stale", "4h", "--failover-after", "6s", "--stale-after", "11m", "--reconnect-spread", "12s", "--upstream-keepalive-time", "31s", "--upstream-keepalive-timeout", "13s",
		"--ttl-policy", "cds=hold", "--ttl-policy", "LDS=hold", "--ttl-policy", "LDS=expire", "--ttl-policy", "type.googleapis.com/x.Y=hold",
		"--max-removal-percent", "30", "--removal-confirm-after", "8m", "--hold-endpoints=false", "--prune-unconfirmed-after", "9m",
		"--node-id", "i", "--node-cluster", "c", "--node-locality", "r/z", "--node-metadata", "a=1",
		"--node-metadata", "b:=1", "--admin", "unix:/a", "--admin-readers", "uid:root", "--admin-readers", "gid:4294967294", "--admin-readers", "uid:7", "--pprof", "--health", ":9", "--log-level", "debug", "--log-format", "json")
	if err != nil {
		t.Fatal(err)
	}
	node := cfg.Node
	if node.GetId() != "i" || node.GetCluster() != "c" || node.GetLocality().GetZone() != "z" ||
		node.GetMetadata().GetFields()["a"].GetStringValue() != "1" || node.GetMetadata().GetFields()["b"].GetNumberValue() != 1 {
		t.Errorf("node %v", node)
	}
	cfg.Node, cfg.Log = nil, nil
	source, err := seed.NewSource("https://seeds.test/web", dial.Security{Flags: "seed", CA: "sca", TokenFile: "stok"},
		[]ed25519.PublicKey{seedKey.Public().(ed25519.PublicKey)}, 5*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	place, err := seed.NewPlace("/web.seed", dial.Security{})
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Config{
		Seed:    agent.SeedConfig{Role: "role", Source: source, Publish: place, Every: 6 * time.Minute, Key: seedKey},
		Version: "dev", Upstreams: []string{"a:1", "file:/x"},
		Upstream: upstream.Config{
			Form:     xds.SotW,
			Security: dial.Security{Plaintext: true, CA: "ca", Cert: "cert", Key: "key", ServerName: "sn", SANs: []string{"s1,x", "s2"}, TokenFile: "tok"},
			Headers:  map[string]string{"ClusterID": "K=1"}, MaxMessage: 5, AckTimeout: 2 * time.Second,
			KeepaliveTime: 31 * time.Second, KeepaliveTimeout: 13 * time.Second, RESTRefresh: 7 * time.Second,
		},
		Timing: failover.Timing{FailoverAfter: 6 * time.Second, StaleAfter: 11 * time.Minute, ReconnectSpread: 12 * time.Second},
		Socket: downstream.SocketConfig{Path: "/s", Mode: 0o600, Group: "g"},
		Peers:  downstream.Peers{UIDs: []uint32{101, 0}, GIDs: []uint32{4294967294, 0}},
		Downstream: downstream.Config{
			PassThrough: []string{"envoy.service.ratelimit.v3.RateLimitService", "a.B"}, RESTHold: 30 * time.Second,
			Limits: downstream.Limits{Streams: 1, Types: 2, Subscriptions: 3, RequestRate: 4, RequestBurst: 5, AnyDepth: 8},
		},
		REST:      "127.0.0.1:1",
		MaxGroups: 33,
		Group: group.Config{
			RestoreAfter: 3 * time.Second, MaxStale: 4 * time.Hour,
			Cache: cache.Config{
				Linger: 5 * time.Minute, MaxResources: 6, MaxBytes: 7, HistoryBytes: 77, FallbackFor: 20 * time.Minute,
				HoldTTL: map[string]bool{xds.ClusterType: true, "type.googleapis.com/x.Y": true},
				Guard:   cache.Guard{MaxRemovalPercent: 30, ConfirmAfter: 8 * time.Minute, PruneAfter: 9 * time.Minute},
			},
		},
		Store:                 store.Config{Dir: "/state", Identity: "web", Keys: [][]byte{key, key}},
		ReadyRequiresUpstream: true, Takeover: true,
		Certificates: sds.Config{
			Sources: []sds.SourceConfig{{
				CA: "istio:istiod:15012", Identities: []sds.Identity{
					{Names: pki.Names{ID: "spiffe://td/web", DNS: []string{"web.test"}, IPs: []string{"192.0.2.1"}}, Secret: "web"},
					{Names: pki.Names{ID: "spiffe://td/api"}, Secret: "api"},
				},
				RootSecret: "roots", Validator: sds.SPIFFE, Roots: "/roots.pem", CRL: "/crl.pem", KeyType: pki.RSA3072,
				Lifetime: 12 * time.Hour, RootOverlap: 13 * time.Hour, RootLead: 14 * time.Second,
				Istio: istio.Config{
					Security: dial.Security{CA: "ica", Cert: "icert", Key: "ikey", ServerName: "isn", SANs: []string{"isan"}, TokenFile: "itok"},
					Headers:  map[string]string{"ClusterID": "K"}, Signer: "signer",
				},
			}, {
				CA: "files:/tls", RootSecret: "other", Validator: sds.TrustedCA, KeyType: pki.ECDSAP256,
				Lifetime: sds.DefaultLifetime, RootLead: sds.DefaultRootLead,
			}},
			IdentityDir: "/identity", SecretDirs: []string{"/etc/a", "/etc/b"}, Aliases: map[string]string{"x": "web"},
		},
		Envoy: envoy.Config{
			Exit: true, StartAfter: time.Second, Draining: envoy.Draining{Timeout: 2 * time.Second, Min: 3 * time.Second}, Grace: 4 * time.Second, Admin: "127.0.0.1:2",
		},
		Admin: admin.Config{Addr: "unix:/a", ReaderUIDs: []uint32{0, 7}, ReaderGIDs: []uint32{4294967294}, Pprof: true, Health: ":9"},
	}
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got  %+v\nwant %+v", cfg, want)
	}
}

func TestListsAndPairsOfEachSource(t *testing.T) {
	for _, tc := range []struct {
		name      string
		file      string
		environ   []string
		upstreams []string
		metadata  string // as fmt prints the map
		headers   map[string]string
	}{
		{"commas in a variable", "", []string{"HOLDFAST_UPSTREAM= a:1, b:2,", "HOLDFAST_NODE_METADATA=x=1,z=2", "HOLDFAST_UPSTREAM_HEADER=a=1,b=2"},
			[]string{"a:1", "b:2"}, "x:1 z:2", map[string]string{"a": "1", "b": "2"}},
		{"lines in a variable", "", []string{"HOLDFAST_UPSTREAM=a:1\nb:2\n", "HOLDFAST_NODE_METADATA=x=1,2\n", "HOLDFAST_UPSTREAM_HEADER=a=1,2\n"},
			[]string{"a:1", "b:2"}, "x:1,2", map[string]string{"a": "1,2"}},
		{"an object in a variable", "", []string{"HOLDFAST_UPSTREAM=a:1", `HOLDFAST_NODE_METADATA={"x": [1, true], "z": "2"}`, `HOLDFAST_UPSTREAM_HEADER={"a": "1,2"}`},
			[]string{"a:1"}, "x:[1 true] z:2", map[string]string{"a": "1,2"}},
		{"a list and mappings in the file", "upstream: [a:1, 'b:2']\nnode-metadata: {x: [1, true], z: '2'}\nupstream-header: {a: '1,2'}", nil,
			[]string{"a:1", "b:2"}, "x:[1 true] z:2", map[string]string{"a": "1,2"}},
		{"single values and lists of pairs in the file", "upstream: a:1\nnode-metadata: [x=1, 'z:=2']\nupstream-header: ['a=1,2']", nil,
			[]string{"a:1"}, "x:1 z:2", map[string]string{"a": "1,2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, _, err := configured(t, tc.file, tc.environ, "--node-id", "i", "--node-cluster", "c")
			if err != nil {
				t.Fatal(err)
			}
			metadata := fmt.Sprint(cfg.Node.GetMetadata().AsMap()) // sorted by key
			if !slices.Equal(cfg.Upstreams, tc.upstreams) || metadata != "map["+tc.metadata+"]" || !maps.Equal(cfg.Upstream.Headers, tc.headers) {
				t.Errorf("upstreams %q, metadata %q, headers %q", cfg.Upstreams, metadata, cfg.Upstream.Headers)
			}
		})
	}
}

// Several sources, each with identities and names of secrets of its own.
func TestSourcesOfCertificatesStandInTheFile(t *testing.T) {
	file := `
ca: dir:/etc/ca
identity: [spiffe://a/x, spiffe://a/y secret=y]
certificates:
- ca: spire:unix:/run/spire.sock
  root-secret: spire-roots
  identity: secret=spire
- ca: files:/tls
  identity: [secret=tls]
  root-secret: tls-roots
`
	cfg, _, err := configured(t, file, []string{"HOLDFAST_ROOT_SECRET=roots"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range cfg.Certificates.Sources {
		for _, id := range s.Identities {
			got = append(got, s.CA+" "+s.RootSecret+" "+id.Names.ID+" "+id.Secret)
		}
	}
	want := []string{
		"dir:/etc/ca roots spiffe://a/x ", "dir:/etc/ca roots spiffe://a/y y",
		"spire:unix:/run/spire.sock spire-roots  spire", "files:/tls tls-roots  tls",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if len(cfg.Upstreams) > 0 {
		t.Error("certificates need no control plane")
	}
}

func TestTheNodeIsReadFromTheBootstrap(t *testing.T) {
	file := write(t, "envoy.yaml", "node: {id: web-1, cluster: web}\n")
	cfg, _, err := configured(t, "", nil, "--upstream", "a:1", "--bootstrap", file)
	if err != nil || cfg.Node.GetId() != "web-1" || cfg.Node.GetCluster() != "web" {
		t.Errorf("node %v, %v", cfg.Node, err)
	}
	cfg, _, err = configured(t, "", nil, "--upstream", "a:1")
	if err != nil || cfg.Node != nil {
		t.Errorf("without: node %v, %v", cfg.Node, err)
	}
	// holdfast bootstrap has the same file.
	cfg, _, err = configured(t, "node-metadata: [a=b]\nnode-id: web-2\nbootstrap: "+file, nil, "--upstream", "a:1")
	if err != nil || cfg.Node.GetId() != "web-1" || len(cfg.Node.GetMetadata().GetFields()) > 0 {
		t.Errorf("with a file for both: node %v, %v", cfg.Node, err)
	}
}

func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	_, warnings, err := configured(t, "", []string{
		"HOLDFAST_UPSTREAM=a:1", "HOLDFAST_UPSTREM=b:1", "HOLDFAST_XYZZY=1", "HOLDFAST_OUT=other command",
		"HOLDFAST_SERVICE_HOST=10.0.0.1", "HOLDFAST_PORT_15020_TCP=tcp://10.0.0.1:15020", "PATH=/bin",
	})
	want := []string{
		"environment variable HOLDFAST_UPSTREM is not a setting, did you mean HOLDFAST_UPSTREAM?",
		"environment variable HOLDFAST_XYZZY is not a setting",
	}
	if err != nil || !slices.Equal(warnings, want) {
		t.Errorf("%v, %q", err, warnings)
	}
}

func TestWhatIsWrongWithSettingsIsSaid(t *testing.T) {
	up := []string{"--upstream", "a:1"}
	and := func(args ...string) []string { return append(slices.Clone(up), args...) }
	for _, tc := range []struct {
		name    string
		file    string
		environ []string
		args    []string
		want    string
	}{
		{"no upstream", "", nil, nil, "--upstream is missing: name the control plane, such as"},
		{"an unknown key", "upstrem: a:1", nil, nil, `holdfast.yaml: unknown key "upstrem", did you mean upstream?`},
		{"an unknown key with underscores", "upstream_ca: a", nil, nil, `unknown key "upstream_ca", did you mean upstream-ca?`},
		{"an unknown key like no other", "zzz: a", nil, nil, `holdfast.yaml: unknown key "zzz"`},
		{"a key of another command", "dir: a", nil, up, ""},
		{"a key twice", "socket: a\nsocket: b", nil, nil, `key "socket" is given twice`},
		{"no YAML", "socket: [", nil, nil, "holdfast.yaml: line 1"},
		{"no mapping", "- a", nil, nil, "holdfast.yaml: want a mapping of flag names to values"},
		{"an empty file", "", nil, up, ""},
		{"no such file", "", nil, and("--config", "/does/not/exist.yaml"), "--config: open /does/not/exist.yaml: no such file"},
		{"no such file of a variable", "", []string{"HOLDFAST_CONFIG=/does/not/exist.yaml"}, up, "--config: open /does/not/exist.yaml"},
		{"a number for a mode", "socket-mode: 0660", nil, up, "holdfast.yaml: socket-mode: put the permissions into quotes"},
		{"a number for text", "node-id: 1.10", nil, up, "node-id: want text: put 1.1 into quotes"},
		{"a list for one value", "socket: [a]", nil, up, "socket: want one value, not a list"},
		{"a mapping for one value", "socket: {a: b}", nil, up, "socket: want a value, not a mapping"},
		{"numbers in a list", "upstream: [1]", nil, nil, "upstream: want a list of texts: put 1 into quotes"},
		{"no value", "socket:", nil, up, "socket: has no value: write ''"},
		{"a bad duration in the file", "ack-timeout: 5", nil, up, "ack-timeout: 5: want a duration with its unit"},
		{"a bad duration in a variable", "", []string{"HOLDFAST_ACK_TIMEOUT=5"}, up, `HOLDFAST_ACK_TIMEOUT: "5": want a duration with its unit`},
		{"a negative duration", "", nil, and("--ack-timeout", "-1s"), "--ack-timeout: -1s: want a positive duration"},
		{"no linger", "", nil, and("--client-linger", "0"), "--client-linger: 0s: want a positive duration"},
		{"no message fits", "", nil, and("--upstream-max-message-bytes", "0"), "--upstream-max-message-bytes: 0: want a positive number"},
		{"a bad mode", "", []string{"HOLDFAST_SOCKET_MODE=rw"}, up, `HOLDFAST_SOCKET_MODE: "rw": want permissions in octal, such as 0660`},
		{"an unknown user", "", nil, and("--allow-uid", "101", "--allow-uid", "no such user"), `--allow-uid: "no such user": unknown user on this machine: give the number`},
		{"a user with a line break", "", nil, and("--allow-uid", "a\nb"), `--allow-uid: "a\nb": unknown user on this machine: give the number`},
		{"an unknown group", "allow-gid: [no such group]", nil, up, `holdfast.yaml: allow-gid: "no such group": unknown group on this machine: give the number`},
		{"a negative user", "", nil, and("--allow-uid", "-1"), "--allow-uid: -1: want a name, or a number from 0 to 4294967294"},
		{"the number that is no user's", "", nil, and("--allow-uid", "4294967295"), "--allow-uid: 4294967295: want a name, or a number from 0 to"},
		{"a group beyond all", "", []string{"HOLDFAST_ALLOW_GID=1,4294967296"}, up, "HOLDFAST_ALLOW_GID: 4294967296: want a name, or a number from 0 to"},
		{"no user", "", nil, and("--allow-uid", ""), "--allow-uid"},
		{"a reader of no kind", "", nil, and("--admin-readers", "1000"), `--admin-readers: "1000": want uid:USER or gid:GROUP, such as uid:1000 or gid:monitoring`},
		{"a reader without a name", "admin-readers: ['gid:']", nil, up, `holdfast.yaml: admin-readers: "gid:": want uid:USER or gid:GROUP`},
		{"an unknown reader", "", []string{"HOLDFAST_ADMIN_READERS=uid:0,gid:no such group"}, up, `HOLDFAST_ADMIN_READERS: "no such group": unknown group on this machine: give the number`},
		{"readers of a TCP address", "", nil, and("--admin", "127.0.0.1:1", "--admin-readers", "uid:0"), "--admin-readers needs --admin unix:PATH"},
		{"a bad choice", "upstream-protocol: rest", nil, up, `upstream-protocol: "rest": want delta or sotw`},
		{"an empty upstream", "upstream: ['']", nil, nil, "upstream: is empty"},
		{"a header without value", "", []string{"HOLDFAST_UPSTREAM_HEADER=secret-token"}, up, "HOLDFAST_UPSTREAM_HEADER: want NAME=VALUE"},
		{"a header of gRPC", "upstream-header: {grpc-timeout: '1'}", nil, up, "headers that begin with grpc- belong to gRPC"},
		{"a header with a bad name", "upstream-header: {':path': x}", nil, up, "the text before the first '=' is not the name of a header"},
		{"a header with a line break", "upstream-header: {a: \"x\\ny\"}", nil, up, `the value of "a" has characters that are not printable ASCII`},
		{"a header twice", "upstream-header: [a=1, A=2]", nil, up, `"A" is given twice`},
		{"a header that is no text", "upstream-header: {a: 1}", nil, up, "a: want text: put the value into quotes"},
		{"metadata without a value", "", []string{"HOLDFAST_NODE_METADATA=a"}, up, `"a": want NAME=TEXT or NAME:=JSON`},
		{"metadata that is no JSON", "node-metadata: ['a:={']", nil, up, "a: not JSON: unexpected EOF"},
		{"metadata of two values", "node-metadata: ['a:=1 2']", nil, up, "a: more than one JSON value"},
		{"a method for a service", "", nil, and("--pass-through", "/a.B/C"), `"/a.B/C" is not a gRPC service: want its full name`},
		{"metadata twice", "node-metadata: [a=1, 'a:=2']", nil, up, `"a" is given twice`},
		{"metadata that would be rounded", "node-metadata: {a: 9007199254740993}", nil, and("--node-id", "i", "--node-cluster", "c"), "protobuf would round"},
		{"metadata beyond numbers", "node-metadata: {a: 99999999999999999999}", nil, up, "too large for a number"},
		{"a certificate without its source", "", nil, and("--identity", "spiffe://td/a"), "--identity has no meaning without --ca"},
		{"a certificate without its source in the file", "cert-lifetime: 1h", nil, up, "--cert-lifetime has no meaning without --ca"},
		{"an identity directory without a source", "", []string{"HOLDFAST_IDENTITY_DIR=/x"}, up, "--identity-dir has no meaning without --ca"},
		{"an alias without a source", "secret-alias: {a: b}", nil, up, "--secret-alias has no meaning without --ca or --secret-dir"},
		{"an alias of nothing", "secret-alias: ['a=']", nil, up, "want NAME=SECRET, neither of them empty"},
		{"an alias twice", "", nil, and("--secret-alias", "a=b", "--secret-alias", "a=c"), `"a" is given twice`},
		{"no SPIFFE ID", "", nil, and("--ca", "dev", "--identity", "spiffe://TD/a"), `"spiffe://TD/a" is not a SPIFFE ID (spiffe://TRUST-DOMAIN/PATH): trust domain characters are limited to lowercase`},
		{"an unknown word of an identity", "identity: ['spiffe://td/a uri=x']", nil, and("--ca", "dev"), `identity: "uri=x": want a SPIFFE ID, and after it dns=NAME, ip=ADDR or secret=NAME`},
		{"no DNS name", "", nil, and("--ca", "dev", "--identity", "dns=a..b"), `"a..b" is not a DNS name`},
		{"no IP address", "", nil, and("--ca", "dev", "--identity", "ip=a"), `"a" is not an IP address`},
		{"an empty identity", "", nil, and("--ca", "dev", "--identity", " "), "is empty"},
		{"Ed25519", "", nil, and("--ca", "dev", "--key-type", "ed25519"), "--key-type: Ed25519: Envoy 1.40 offers no such signature"},
		{"no lifetime", "", nil, and("--ca", "dev", "--cert-lifetime", "0"), "--cert-lifetime: 0s: want a positive duration"},
		{"a flag of istio for another source", "istio-token-file: /t", nil, and("--ca", "dev"), "--istio-token-file is for istio:ADDR only"},
		{"a bad validator", "", nil, and("--root-validator", "x"), `"x": want trusted-ca or spiffe`},
		{"a source that is no object", "", nil, and("--certificates", "dev"), "not JSON"},
		{"a source that is a list", "", nil, and("--certificates", "[]"), "want an object"},
		{"a source without its place", "certificates: [{identity: spiffe://td/a}]", nil, up, "certificates: ca is missing"},
		{"an unknown key of a source", "certificates: [{ca: dev, identiy: x}]", nil, up, `certificates: unknown key "identiy", did you mean identity?`},
		{"a bad value of a source", "certificates: [{ca: dev, cert-lifetime: 5}]", nil, up, "certificates: cert-lifetime: 5: want a duration with its unit"},
		{"a node without cluster", "", nil, and("--node-id", "i"), "--node-cluster is required"},
		{"a node that is none", "bootstrap: x.yaml", nil, and("--node-id", "", "--node-cluster", ""), "open x.yaml"},
		{"two nodes", "", nil, and("--node-id", "i", "--bootstrap", "x.yaml"), "--bootstrap and --node-… both name Envoy's node"},
		{"two nodes, one in a variable", "bootstrap: x.yaml", []string{"HOLDFAST_NODE_METADATA=a=b"}, up, "--bootstrap and --node-… both name Envoy's node"},
		{"no such bootstrap", "", nil, and("--bootstrap", "/does/not/exist.yaml"), "bootstrap: read node: open /does/not/exist.yaml"},
		{"a bad admin address", "", nil, and("--admin", "/run/a.sock"), `--admin: "/run/a.sock": want unix:PATH or host:port`},
		{"a bad health address", "", nil, and("--health", "unix:/a"), "--health: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := configured(t, tc.file, tc.environ, tc.args...)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v\nwant %s", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret-token") {
				t.Error("the error shows a value that may be a token")
			}
		})
	}
}

func TestTheServicesThatArePassedThroughReplaceTheDefault(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"the default", nil, downstream.DefaultPassThrough},
		{"one", []string{"--pass-through", "a.B"}, []string{"a.B"}},
		{"none", []string{"--pass-through", "none"}, []string{}},
	} {
		cfg, _, err := configured(t, "", nil, append([]string{"--upstream", "a:1"}, tc.args...)...)
		if err != nil || !reflect.DeepEqual(cfg.Downstream.PassThrough, tc.want) {
			t.Errorf("%s: %q, %v", tc.name, cfg.Downstream.PassThrough, err)
		}
	}
}

// A token that is given in a wrong way is not repeated where everybody can read it.
func TestWhatIsWrongIsSaidWithoutTheSecretInIt(t *testing.T) {
	const planted = "PLANTED0123456789"
	up := []string{"run", "--upstream", "127.0.0.1:1"}
	for _, tc := range []struct {
		name    string
		file    string
		environ []string
		args    []string
	}{
		{"a header with a colon", "", nil, append(up, "--upstream-header", "authorization: Bearer "+planted+"==")},
		{"a header without a name", "", nil, append(up, "--upstream-header", planted)},
		{"a header without quotes", "", nil, append(up, "--upstream-header", "authorization=Bearer", planted)},
		{"a header of the CA without quotes", "", nil, append(up, "--istio-header", "authorization=Bearer", planted)},
		{"a header in the environment", "", []string{"HOLDFAST_UPSTREAM_HEADER=authorization: " + planted + "=="}, up},
		{"headers in the environment", "", []string{"HOLDFAST_UPSTREAM_HEADER=a=b,x " + planted + "=="}, up},
		{"a header in JSON", "", []string{`HOLDFAST_UPSTREAM_HEADER={"a": "` + planted + `}`}, up},
		{"a header in the file", "upstream-header: ['authorization: " + planted + "==']", nil, up},
		{"a header that is no text", "upstream-header: {authorization: 8123456789}", nil, up},
		{"a header with a line break", "", nil, append(up, "--upstream-header", "authorization="+planted+"\n")},
		{"a password in a URL", "", nil, []string{"run", "--upstream", "https://user:" + planted + "@127.0.0.1:1"}},
		{"a password in a URL without TLS", "", nil, []string{"run", "--upstream", "http://user:" + planted + "@127.0.0.1:1"}},
		{"a password in a URL with a bad port", "", nil, []string{"run", "--upstream", "https://user:" + planted + "@127.0.0.1:x"}},
		{"a password with a slash", "", nil, []string{"run", "--upstream", "https://user:" + planted + "/x@127.0.0.1:1"}},
		{"a token in a URL", "", nil, []string{"run", "--upstream", "https://" + planted + "@127.0.0.1:1"}},
		{"a token in the query of a URL", "", nil, []string{"run", "--upstream", "https://127.0.0.1:1/?token=" + planted}},
		{"a password in an address", "", nil, []string{"run", "--upstream", "user:" + planted + "@127.0.0.1:1"}},
		{"a password in a target", "", nil, []string{"run", "--upstream", "dns:///user:" + planted + "@xds.test:1"}},
		{"a password in a URL of another scheme", "", nil, []string{"run", "--upstream", "grpc://user:" + planted + "@xds.test:1"}},
		{"a password twice", "", nil, []string{"run", "--upstream", "https://u:" + planted + "@h:1", "--upstream", "https://u:" + planted + "@h:1"}},
		{"a password in the environment", "", []string{"HOLDFAST_UPSTREAM=https://user:" + planted + "@127.0.0.1:1"}, []string{"run"}},
		{"a password in the address of the CA", "", nil, []string{"run", "--ca", "istio:user:" + planted + "@ca.test:1", "--identity", "spiffe://test/x"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := tc.args
			if tc.file != "" {
				args = append(slices.Clone(args), "--config", write(t, "holdfast.yaml", tc.file))
			}
			got := call(t, tc.environ, args...)
			if got.code != cli.ExitUsage || strings.Count(got.errors, "\n") != 1 {
				t.Errorf("code %d: %s", got.code, got.errors)
			}
			for _, secret := range []string{planted, "8123456789"} {
				if strings.Contains(got.errors, secret) {
					t.Errorf("the secret is shown: %s", got.errors)
				}
			}
		})
	}
}
