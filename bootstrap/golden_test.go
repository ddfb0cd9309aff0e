package bootstrap

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/aymanbagabas/go-udiff"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
)

// goldenDir has what test/e2e gives to every Envoy of the matrix.
const goldenDir = "testdata/golden"

// goldenConfigs are bootstraps by the name of their file.
func goldenConfigs(t testing.TB) map[string]Config {
	t.Helper()
	with := func(change func(*Config)) Config {
		cfg := minimal()
		change(&cfg)
		return cfg
	}
	return map[string]Config{
		"defaults":       minimal(),
		"every-value":    full(),
		"sotw":           with(func(c *Config) { c.XDS.Mode = SotW }),
		"per-type-delta": with(func(c *Config) { c.XDS.Transport = PerType }),
		"per-type-sotw":  with(func(c *Config) { c.XDS.Transport, c.XDS.Mode = PerType, SotW }),
		"rest": with(func(c *Config) {
			c.XDS = XDS{Transport: REST, RefreshDelay: 200 * time.Millisecond, RequestTimeout: 40 * time.Second}
		}),
		"pod":              {Node: podNode(t)},
		"hostile-metadata": {Node: hostileNode()},
		"endpoints-of-a-unix-admin": with(func(c *Config) {
			c.Admin = "unix:/run/holdfast/envoy-admin.sock"
			c.Endpoints = Endpoints{Ready: ":15021", Stats: "127.0.0.1:15090"}
		}),
		"endpoints-of-a-tcp-admin": with(func(c *Config) { c.Endpoints = Endpoints{Ready: ":15021", Stats: ":15090"} }),
		"ipv6": with(func(c *Config) {
			c.Family, c.Endpoints = V6, Endpoints{Ready: ":15021", Stats: "[::1]:15090"}
		}),
		"dual-stack": with(func(c *Config) {
			c.Family, c.Endpoints = Dual, Endpoints{Ready: ":15021", Stats: ":15090"}
		}),
		"stats-tags": with(func(c *Config) {
			c.Stats.Tags = []Tag{{Name: "service", Regex: `^cluster\.((.+?)\.)`}, {Name: "pod", Fixed: "web-0"}}
			c.Stats.NoDefaultTags = true
		}),
		"stats-included": with(func(c *Config) {
			c.Stats.Include = []Match{{Prefix, "http."}, {Suffix, "rbac.allowed"}, {Regex, `vhost\..*\.route\..*`}}
		}),
		"stats-excluded": with(func(c *Config) {
			c.Stats.Exclude = []Match{{Suffix, "_bucket"}}
			c.Stats.FlushInterval = 10 * time.Second
		}),
		"histogram-buckets": with(func(c *Config) {
			c.Stats.Buckets = []Buckets{
				{Match{Prefix, "cluster."}, []float64{10, 1, 5}}, {Match{Regex, `http\..*_time`}, []float64{0.5, 1e6}},
			}
		}),
		"runtime": with(func(c *Config) {
			c.Runtime.Values = map[string]any{
				"envoy.reloadable_features.http_reject_path_with_fragment": false, "re2.max_program_size.error_level": 32768,
				"health_check.min_interval": 7, "sampled": map[string]any{"numerator": 5, "denominator": "TEN_THOUSAND"},
			}
		}),
		"runtime-from-the-control-plane": with(func(c *Config) {
			c.Runtime = Runtime{Values: map[string]any{"a": "b"}, RTDS: []string{"mesh", "team"}}
		}),
		"runtime-over-rest": with(func(c *Config) { c.XDS.Transport, c.Runtime.RTDS = REST, []string{"mesh"} }),
		"overload":          with(func(c *Config) { c.Overload = Overload{MaxHeap: 255013683, MaxConnections: 10000} }),
		"log-in-json":       with(func(c *Config) { c.Log = JSONLine }),
		"gateway":           gateway(t),
	}
}

// podNode is the node of a pod of Istio's.
func podNode(t testing.TB) Node {
	t.Helper()
	labels, err := ReadDownward("testdata/labels")
	if err != nil {
		t.Fatal(err)
	}
	annotations, err := ReadDownward("testdata/annotations")
	if err != nil {
		t.Fatal(err)
	}
	node, err := Identity{
		Given: Node{Metadata: map[string]any{"TEAM": "shop"}},
		Pod: Pod{
			IPs:  []netip.Addr{netip.MustParseAddr("fd00::5"), netip.MustParseAddr("10.1.2.3")},
			Name: "web-7d9c-x2x", Namespace: "shop", ServiceAccount: "web", Family: V4,
		},
		Environ: []string{
			"HOLDFAST_META_OWNER=shop", "ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_MESH_ID=cluster.local",
			`ISTIO_METAJSON_ANNOTATIONS={"sidecar.istio.io/proxyCPU": "100m"}`, `ISTIO_METAJSON_LABELS={"tier": "front"}`, "PATH=/bin",
		},
		Labels: labels, Annotations: annotations,
	}.Node()
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// gateway has everything at once.
func gateway(t testing.TB) Config {
	return Config{
		Node:      podNode(t),
		XDS:       XDS{Socket: "/var/run/mesh/xds.sock", Mode: SotW},
		Admin:     "unix:/var/run/mesh/admin.sock",
		Family:    Dual,
		Endpoints: Endpoints{Ready: ":15021", Stats: ":15090"},
		Stats: Stats{
			Tags:    []Tag{{Name: "pod", Fixed: "web-0"}},
			Include: []Match{{Prefix, "http."}}, FlushInterval: time.Second,
			Buckets: []Buckets{{Match{Prefix, "http."}, []float64{1, 10, 100}}},
		},
		Runtime:  Runtime{Values: map[string]any{"a": 1}, RTDS: []string{"mesh"}},
		Overload: Overload{MaxHeap: 1 << 30, MaxConnections: 50000},
		Log:      JSONLine,
	}
}

// goldens are all bootstraps that are golden files: those of configurations, those with the overlays of
// examples/bootstrap, each alone, and its template.
func goldens(t testing.TB) map[string]*bootstrapv3.Bootstrap {
	t.Helper()
	all := make(map[string]*bootstrapv3.Bootstrap)
	for name, cfg := range goldenConfigs(t) {
		all[name] = mustBuild(t, cfg)
	}
	for _, path := range examples(t) {
		name := filepath.Base(path)
		name = name[:len(name)-len(filepath.Ext(name))]
		if name == "template" {
			template, err := Read("template", path)
			if err != nil {
				t.Fatal(err)
			}
			if all["example-template"], err = Complete(template, full()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		overlay, err := ReadOverlay(path)
		if err != nil {
			t.Fatal(err)
		}
		if all["example-"+name], err = Apply(mustBuild(t, minimal()), overlay); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func examples(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("../examples/bootstrap/*.yaml")
	if err != nil || len(paths) < 7 {
		t.Fatalf("examples: %q, %v", paths, err)
	}
	return paths
}

func TestEveryBootstrapIsItsGoldenFile(t *testing.T) {
	all := goldens(t)
	if len(goldenConfigs(t)) < 20 {
		t.Errorf("only %d configurations", len(goldenConfigs(t)))
	}
	for name, b := range all {
		t.Run(name, func(t *testing.T) {
			if err := Check(b); err != nil {
				t.Error(err)
			}
			got := mustEncode(t, b, YAML)
			golden := filepath.Join(goldenDir, name+".yaml")
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
				t.Errorf("after looking at it, accept it with go test ./bootstrap -update\n%s", udiff.Unified(golden, "built", string(want), string(got)))
			}
			if back := decode(t, got, YAML); !proto.Equal(back, b) {
				t.Errorf("the text means something else than what was built:\n%v\n%v", back, b)
			}
		})
	}
	files, err := filepath.Glob(filepath.Join(goldenDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if _, built := all[name[:len(name)-len(filepath.Ext(name))]]; !built {
			t.Errorf("%s is nobody's", file)
		}
	}
}

func TestEveryPartOfABootstrapIsTheSameAgain(t *testing.T) {
	for name, cfg := range goldenConfigs(t) {
		t.Run(name, func(t *testing.T) {
			first := mustEncode(t, mustBuild(t, cfg), YAML)
			for range 20 {
				if next := mustEncode(t, mustBuild(t, goldenConfigs(t)[name]), YAML); !slices.Equal(first, next) {
					t.Fatal(udiff.Unified("first", "next", string(first), string(next)))
				}
			}
		})
	}
}
