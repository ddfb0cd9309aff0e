package bootstrap

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

var update = flag.Bool("update", false, "write the golden files in testdata instead of comparing with them")

var formats = map[string]Format{"json": JSON, "yaml": YAML}

func minimal() Config {
	return Config{Node: Node{ID: "web-0", Cluster: "web"}}
}

func full() Config {
	return Config{
		Node: Node{
			ID:       "sidecar~10.1.2.3~web-0.default~default.svc.cluster.local",
			Cluster:  "web.default",
			Locality: "eu-west-1/eu-west-1a/rack-7",
			Metadata: map[string]any{
				"GENERATOR": "api",
				"LABELS":    map[string]any{"app": "web", "version": "v1", "empty": map[string]any{}},
				"PORTS":     []any{8080, 9090.5, []any{}},
				"MESH":      true,
				"OWNER":     nil,
			},
		},
		XDS:   XDS{Socket: "/var/run/mesh/xds.sock", Mode: SotW},
		Admin: "unix:/var/run/mesh/envoy-admin.sock",
	}
}

func mustBuild(t testing.TB, cfg Config) *bootstrapv3.Bootstrap {
	t.Helper()
	b, err := Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustEncode(t testing.TB, b *bootstrapv3.Bootstrap, f Format) []byte {
	t.Helper()
	data, err := Encode(b, f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// decode is the way back from Encode, for the whole bootstrap.
func decode(t testing.TB, data []byte, f Format) *bootstrapv3.Bootstrap {
	t.Helper()
	if f == YAML {
		var err error
		if data, err = yaml.YAMLToJSONStrict(data); err != nil {
			t.Fatalf("%v in\n%s", err, data)
		}
	}
	b := &bootstrapv3.Bootstrap{}
	if err := (protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal(data, b); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	return b
}

func TestTheBootstrapIsTheGoldenFile(t *testing.T) {
	for name, cfg := range map[string]Config{"minimal": minimal(), "full": full()} {
		for ext, format := range formats {
			t.Run(name+"."+ext, func(t *testing.T) {
				b := mustBuild(t, cfg)
				got := mustEncode(t, b, format)
				golden := filepath.Join("testdata", name+"."+ext)
				if *update {
					if err := os.WriteFile(golden, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("differs from %s; after looking at it, accept it with go test ./bootstrap -update\n%s", golden, got)
				}
				if back := decode(t, got, format); !proto.Equal(back, b) {
					t.Errorf("the text means something else than what was built:\n%v\n%v", back, b)
				}
			})
		}
	}
}

func TestEqualConfigurationsGiveEqualBytes(t *testing.T) {
	for ext, format := range formats {
		t.Run(ext, func(t *testing.T) {
			first := mustEncode(t, mustBuild(t, full()), format)
			for range 100 {
				if next := mustEncode(t, mustBuild(t, full()), format); !bytes.Equal(first, next) {
					t.Fatalf("two builds differ:\n%s\n%s", first, next)
				}
			}
		})
	}
}

func TestBuildDoesNotKeepItsArguments(t *testing.T) {
	cfg := full()
	b := mustBuild(t, cfg)
	before := proto.Clone(b)
	cfg.Node.Metadata["LABELS"].(map[string]any)["app"] = "changed"
	cfg.Node.Metadata["MORE"] = "x"
	if !proto.Equal(before, b) {
		t.Error("a change of the metadata changed a finished bootstrap")
	}
}

// hostile are strings that would mean something else if they were pasted into JSON or YAML.
var hostile = []string{
	"", " ", "true", "no", "Y", "null", "~", "0x1F", "017", "1_000", "1e3", ".inf", "NaN", "5.", "+5", "12:30:00", "2001-01-01", "=", "<<",
	`"}, "admin": {"address": null}, "x": {"y": "`, `"`, `\`, `\u0041`, "'", "a: b", "- a", "# comment", " # c", "&a", "*a", "!!int 5", "%TAG", "@at", "`tick`",
	"{{ template }}", "${HOME}", "$(id)", "%DOWNSTREAM%", "---\nadmin: {}", "a\nb", "\r\n", "\t", "\x00", "\x1b[2J", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufffe", "\uffff", "\u00a0", "\u009f",
	"é", "日本", "🙂", "<script>&amp;</script>", strings.Repeat("long ", 300),
}

func TestHostileMetadataStaysAString(t *testing.T) {
	for ext, format := range formats {
		t.Run(ext, func(t *testing.T) {
			metadata := map[string]any{}
			for _, s := range hostile {
				metadata["key of "+s] = s
				metadata[s] = s
			}
			cfg := minimal()
			cfg.Node.Metadata = metadata
			b := mustBuild(t, cfg)
			back := decode(t, mustEncode(t, b, format), format)
			if !proto.Equal(back, b) {
				t.Fatal("the bootstrap changed on its way through text")
			}
			for _, s := range hostile {
				if got := back.GetNode().GetMetadata().AsMap()[s]; got != s {
					t.Errorf("%q became %v (%T)", s, got, got)
				}
			}
		})
	}
}

func TestInYAMLEveryStringIsQuoted(t *testing.T) {
	cfg := minimal()
	cfg.Node.Metadata = map[string]any{"A": "1_000", "off": "on"}
	text := string(mustEncode(t, mustBuild(t, cfg), YAML))
	for _, want := range []string{`"A": "1_000"`, `"off": "on"`, `cluster: "web"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestABadConfigurationIsRefusedWithAReason(t *testing.T) {
	long := "/" + strings.Repeat("x", 107)
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no node id", func(c *Config) { c.Node.ID = "" }, "--node-id is required"},
		{"no node cluster", func(c *Config) { c.Node.Cluster = "" }, "--node-cluster is required"},
		{"node id that is no UTF-8", func(c *Config) { c.Node.ID = "\xff" }, `--node-id "\xff" is not valid UTF-8`},
		{"locality with four parts", func(c *Config) { c.Node.Locality = "a/b/c/d" }, "--node-locality"},
		{"locality of separators", func(c *Config) { c.Node.Locality = "//" }, "region/zone/subzone"},
		{"locality that is no UTF-8", func(c *Config) { c.Node.Locality = "\xff" }, "--node-locality"},
		{"metadata with a channel", func(c *Config) { c.Node.Metadata = map[string]any{"a": []any{1, make(chan int)}} }, "--node-metadata: a[1] has the Go type chan int"},
		{"metadata with NaN", func(c *Config) { c.Node.Metadata = map[string]any{"a": math.NaN()} }, "a is NaN"},
		{"metadata that is no UTF-8", func(c *Config) { c.Node.Metadata = map[string]any{"a": map[string]any{"b": "\xff"}} }, "a.b is not valid UTF-8"},
		{"metadata key that is no UTF-8", func(c *Config) { c.Node.Metadata = map[string]any{"\xff": 1} }, `key "\xff"`},
		{"metadata integer over 2^53", func(c *Config) { c.Node.Metadata = map[string]any{"a": 1<<53 + 1} }, "write it as a string"},
		{"metadata integer under -2^53", func(c *Config) { c.Node.Metadata = map[string]any{"a": -1<<53 - 1} }, "write it as a string"},
		{"metadata unsigned over 2^53", func(c *Config) { c.Node.Metadata = map[string]any{"a": uint(1<<53 + 1)} }, "write it as a string"},
		{"relative socket", func(c *Config) { c.XDS.Socket = "xds.sock" }, `xDS socket path "xds.sock" is not absolute`},
		{"abstract socket", func(c *Config) { c.XDS.Socket = "@xds" }, "not absolute"},
		{"socket of 108 bytes", func(c *Config) { c.XDS.Socket = long }, "has 108 bytes; the system allows 107"},
		{"socket that is a directory", func(c *Config) { c.XDS.Socket = "/run/" }, "names a directory"},
		{"socket with a zero byte", func(c *Config) { c.XDS.Socket = "/run/\x00" }, "zero bytes"},
		{"unknown mode", func(c *Config) { c.XDS.Mode = "rest" }, `xDS mode "rest" is neither delta nor sotw`},
		{"admin on every interface", func(c *Config) { c.Admin = ":15000" }, "every interface"},
		{"admin on 0.0.0.0", func(c *Config) { c.Admin = "0.0.0.0:15000" }, "not loopback"},
		{"admin on an address of the pod", func(c *Config) { c.Admin = "10.0.0.1:15000" }, "not loopback"},
		{"admin on [::]", func(c *Config) { c.Admin = "[::]:15000" }, "not loopback"},
		{"admin on a host name", func(c *Config) { c.Admin = "example.com:15000" }, "not an IP address"},
		{"admin without a port", func(c *Config) { c.Admin = "127.0.0.1" }, "neither unix:PATH nor host:port"},
		{"admin with a port too high", func(c *Config) { c.Admin = "127.0.0.1:65536" }, `port "65536"`},
		{"admin on a relative socket", func(c *Config) { c.Admin = "unix:admin.sock" }, "not absolute"},
		{"admin on a socket of 108 bytes", func(c *Config) { c.Admin = "unix:" + long }, "allows 107"},
		{"admin on the xDS socket", func(c *Config) { c.Admin = "unix:" + DefaultSocket }, "are both"},
		{"unknown transport", func(c *Config) { c.XDS.Transport = "udp" }, `xDS transport "udp" is none of ads, grpc and rest`},
		{"no pause between polls", func(c *Config) { c.XDS.Transport, c.XDS.RefreshDelay = REST, -1 }, "want at least 1ms"},
		{"unknown family", func(c *Config) { c.Family = "v5" }, `address family "v5"`},
		{"endpoint without a port", func(c *Config) { c.Endpoints.Ready = "0.0.0.0" }, `--ready-listen "0.0.0.0": want host:port or :port`},
		{"endpoint on port 0", func(c *Config) { c.Endpoints.Stats = ":0" }, `--stats-listen ":0": port "0" is not a number from 1`},
		{"endpoint on a name", func(c *Config) { c.Endpoints.Stats = "localhost:1" }, `host "localhost" is not an IP address`},
		{"endpoint on a zone", func(c *Config) { c.Endpoints.Stats = "[fe80::1%eth0]:1" }, "is not an IP address"},
		{"endpoint of the other family", func(c *Config) { c.Family, c.Endpoints.Ready = V6, "0.0.0.0:1" }, `host "0.0.0.0" is not an address of the family v6`},
		{"endpoint of an admin whose port is unknown", func(c *Config) { c.Admin, c.Endpoints.Ready = "127.0.0.1:0", ":1" }, "set a port other than 0"},
		{"tag without a name", func(c *Config) { c.Stats.Tags = []Tag{{Regex: "(a)"}} }, "has no name"},
		{"tag without a value", func(c *Config) { c.Stats.Tags = []Tag{{Name: "a"}} }, `--stats-tag "a": needs either`},
		{"tag with two values", func(c *Config) { c.Stats.Tags = []Tag{{"a", "(a)", "b"}} }, "needs either"},
		{"tag that is no UTF-8", func(c *Config) { c.Stats.Tags = []Tag{{"a", "", "\xff"}} }, "not valid UTF-8"},
		{"stats included and excluded", func(c *Config) { c.Stats.Include, c.Stats.Exclude = []Match{{Prefix, "a"}}, []Match{{Prefix, "b"}} }, "Envoy accepts only one of them"},
		{"a regex that is none", func(c *Config) { c.Stats.Include = []Match{{Regex, "("}} }, `--stats-include: regex "("`},
		{"a match of nothing", func(c *Config) { c.Stats.Exclude = []Match{{Prefix, ""}} }, `--stats-exclude: prefix "" is empty`},
		{"a match of no kind", func(c *Config) { c.Stats.Exclude = []Match{{"glob", "*"}} }, `"glob" is none of`},
		{"no buckets", func(c *Config) { c.Stats.Buckets = []Buckets{{Match: Match{Prefix, "a"}}} }, `--histogram-buckets: prefix "a": no bounds`},
		{"a bucket twice", func(c *Config) { c.Stats.Buckets = []Buckets{{Match{Prefix, "a"}, []float64{2, 1, 2}}} }, "bound 2 is not positive, or a duplicate"},
		{"a bucket of nothing", func(c *Config) { c.Stats.Buckets = []Buckets{{Match{Prefix, "a"}, []float64{0}}} }, "bound 0"},
		{"an endless bucket", func(c *Config) { c.Stats.Buckets = []Buckets{{Match{Prefix, "a"}, []float64{math.Inf(1)}}} }, "bound +Inf"},
		{"stats flushed too seldom", func(c *Config) { c.Stats.FlushInterval = 6 * time.Minute }, "stats_flush_interval: "},
		{"runtime that is no JSON", func(c *Config) { c.Runtime.Values = map[string]any{"a": math.NaN()} }, "--runtime: a is NaN"},
		{"a layer without a name", func(c *Config) { c.Runtime.RTDS = []string{""} }, `--rtds-layer "" is empty`},
		{"a layer twice", func(c *Config) { c.Runtime.RTDS = []string{"a", "a"} }, `--rtds-layer "a": a layer of this name exists`},
		{"a layer called like ours", func(c *Config) { c.Runtime.RTDS = []string{"admin"} }, `--rtds-layer "admin"`},
		{"unknown form of log", func(c *Config) { c.Log = "xml" }, `log format "xml" is neither text nor json`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := minimal()
			tc.change(&cfg)
			b, err := Build(cfg)
			if err == nil {
				t.Fatalf("accepted: %v", b)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q does not say %q", err, tc.want)
			}
		})
	}
}

func TestTheLimitsThemselvesAreAllowed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
	}{
		{"socket of 107 bytes", func(c *Config) { c.XDS.Socket = "/" + strings.Repeat("x", 106) }},
		{"integers of 2^53", func(c *Config) { c.Node.Metadata = map[string]any{"a": 1 << 53, "b": -1 << 53, "c": uint64(1 << 53)} }},
		{"small integers and floats", func(c *Config) {
			c.Node.Metadata = map[string]any{"a": int8(-1), "b": uint16(7), "c": float32(0.5), "d": uint32(math.MaxUint32)}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := minimal()
			tc.change(&cfg)
			mustBuild(t, cfg)
		})
	}
}

func TestAdminTakesEveryFormOfLoopback(t *testing.T) {
	for in, want := range map[string]string{
		"localhost:0":              "127.0.0.1",
		"127.0.0.2:15000":          "127.0.0.2",
		"[::1]:15000":              "::1",
		"[::ffff:127.0.0.1]:15000": "127.0.0.1",
	} {
		cfg := minimal()
		cfg.Admin = in
		if got := mustBuild(t, cfg).GetAdmin().GetAddress().GetSocketAddress().GetAddress(); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

func TestPartsOfALocalityMayBeMissing(t *testing.T) {
	for in, want := range map[string][3]string{
		"r":     {"r", "", ""},
		"r/z":   {"r", "z", ""},
		"r/z/s": {"r", "z", "s"},
		"/z":    {"", "z", ""},
	} {
		cfg := minimal()
		cfg.Node.Locality = in
		l := mustBuild(t, cfg).GetNode().GetLocality()
		if got := [3]string{l.GetRegion(), l.GetZone(), l.GetSubZone()}; got != want {
			t.Errorf("%s became %q, want %q", in, got, want)
		}
	}
}

func TestValidateNamesEveryBrokenFieldByItsPath(t *testing.T) {
	b := mustBuild(t, minimal())
	cluster := b.GetStaticResources().GetClusters()[0]
	cluster.Name = ""
	cluster.LoadAssignment.ClusterName = ""
	b.GetDynamicResources().GetAdsConfig().GetGrpcServices()[0].GetEnvoyGrpc().ClusterName = ""
	err := checkFields(b)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"static_resources.clusters[0].name: ",
		"static_resources.clusters[0].load_assignment.cluster_name: ",
		"dynamic_resources.ads_config.grpc_services[0].envoy_grpc.cluster_name: ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}

func TestEncodeRefusesAnUnknownFormat(t *testing.T) {
	if _, err := Encode(mustBuild(t, minimal()), "TOML"); err == nil {
		t.Error("accepted")
	}
}

func TestTheFormatFollowsTheExtension(t *testing.T) {
	for path, want := range map[string]Format{"a.json": JSON, "/b/c.yaml": YAML, "c.yml": YAML} {
		if got, err := FormatOf(path); err != nil || got != want {
			t.Errorf("%s: %s, %v", path, got, err)
		}
	}
	for _, path := range []string{"a", "a.txt", "json", "a.pb", "-"} {
		if _, err := FormatOf(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// An Envoy without an agent has any address of its admin interface, and the layers whose names Envoy would not have twice.
func TestAStandaloneBootstrapHasTheAdminAddressAndTheLayers(t *testing.T) {
	for admin, want := range map[string]string{"": DefaultAdmin, "127.0.0.1:9901": "127.0.0.1:9901", "unix:/run/admin.sock": "unix:/run/admin.sock"} {
		b, err := Standalone(&corev3.Node{Id: "a"}, admin, []string{"static", "more"})
		if err != nil {
			t.Errorf("%q: %v", admin, err)
			continue
		}
		if address, err := adminAddress(want); err != nil || !proto.Equal(b.GetAdmin().GetAddress(), address) {
			t.Errorf("%q: the admin address is %v, want %v", admin, b.GetAdmin().GetAddress(), address)
		}
		var names []string
		for _, layer := range b.GetLayeredRuntime().GetLayers() {
			names = append(names, layer.GetName())
		}
		if !slices.Equal(names, []string{"static", "rtds static", "more", "admin"}) || b.GetLayeredRuntime().GetLayers()[1].GetRtdsLayer().GetName() != "static" {
			t.Errorf("the layers are %v", b.GetLayeredRuntime())
		}
	}
	if _, err := Standalone(&corev3.Node{}, "nowhere", nil); err == nil {
		t.Error("no error for an address without a port")
	}
}
