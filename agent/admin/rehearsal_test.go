package admin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// rehearsed returns the rehearsal of a state.
func rehearsed(t *testing.T, state *agent) (r Rehearsal) {
	t.Helper()
	got := ask(server(t, Config{State: state}).full(true), "GET", "/rehearsal")
	if err := json.Unmarshal(got.Body.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, got.Body)
	}
	return r
}

func losses(r Rehearsal) (out []string) {
	for _, l := range r.Losses {
		out = append(out, l.After+": "+l.What+": "+l.Why)
	}
	return out
}

func TestARehearsalOfAnAgentThatLosesNothing(t *testing.T) {
	body := &anypb.Any{TypeUrl: xds.ClusterType}
	r := rehearsed(t, &agent{
		status: Status{Groups: []Group{{NodeID: "web", Types: []Type{{Type: "CDS", TypeURL: xds.ClusterType, Knowledge: "complete", Subscriptions: 1}}}}, Storage: &Storage{Durable: true}},
		resources: []Resource{
			{Group: "web", Type: xds.ClusterType, Name: "a", Body: body}, {Group: "web", Type: xds.ClusterType, Name: "b", Body: body},
			{Group: "web", Type: xds.ClusterType, Name: "frozen away", Body: body, Frozen: true},
		},
	})
	if r.Lost() || len(r.Groups) != 1 || r.Groups[0].Served["CDS"] != 2 || r.Groups[0].Stored["CDS"] != 2 {
		t.Errorf("%+v", r)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "Nothing would be missing.") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func TestARehearsalNamesWhatIsMissingAndWhatEnds(t *testing.T) {
	at := time.Now().Add(time.Hour).UTC().Round(time.Second)
	body := &anypb.Any{TypeUrl: xds.ClusterType}
	r := rehearsed(t, &agent{
		status: Status{
			Groups: []Group{{
				NodeID: "web", NotServedFrom: at.Add(time.Minute), Dangling: []Dangling{{Type: "RDS", Name: "r", Cluster: "gone"}}, Freeze: &Freeze{NotStored: 1},
				Types: []Type{{Type: "RDS", Knowledge: "by name", Errors: 1}, {Type: "LDS", Knowledge: "unknown", Subscriptions: 1}},
			}},
			Storage: &Storage{Durable: true, NotStored: map[string]int{"no key": 1}, Missing: []NotStored{{"CDS", "secret", "no key"}}, Lost: []NotStored{{"SDS", "old", "no key"}}},
		},
		resources: []Resource{
			{Group: "web", Type: xds.ClusterType, Name: "secret", Body: body}, {Group: "web", Type: xds.ClusterType, Name: "ends", Body: body, Deadline: at},
			{Group: "web", Type: xds.RouteType, Name: "r", Error: "no"},
		},
	})
	want := []string{
		"the loss of the control plane: 1 requested RDS resource (r): the control plane did not provide them",
		"the loss of the control plane: all LDS: the control plane has never answered for this type",
		"the loss of the control plane: the cluster gone: RDS r leads to it, and the control plane did not send it",
		"a restart of the agent: the freeze of 1 resource: they cannot be stored",
		"a restart of the agent: CDS secret: not stored: no key",
		"the loss of the control plane: SDS old: it was not stored before the last restart, and is missing already: no key",
	}
	if got := losses(r); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if g := r.Groups[0]; g.Served["CDS"] != 2 || g.Stored["CDS"] != 1 {
		t.Errorf("%+v", g)
	}
	if len(r.Ends) != 2 || r.Ends[0].What != "CDS ends" || !r.Ends[0].At.Equal(at) || r.Ends[1].What != "--max-stale" {
		t.Errorf("%+v", r.Ends)
	}
	// More than the status names.
	r = rehearsed(t, &agent{status: Status{Groups: []Group{{NodeID: "web"}}, Storage: &Storage{Durable: true, NotStored: map[string]int{"no key": 30}, Missing: []NotStored{{"CDS", "a", "no key"}}}}})
	if r.Groups[0].Stored != nil || !slices.Equal(losses(r), []string{"a restart of the agent: CDS a, 29 more: not stored: no key"}) {
		t.Errorf("%+v, %q", r.Groups[0], losses(r))
	}
	// Without a disk.
	if r = rehearsed(t, &agent{}); !slices.Equal(losses(r), []string{"a restart of the agent: everything: there is no --state-dir: what is served is in memory only"}) {
		t.Errorf("%q", losses(r))
	}
	if r = rehearsed(t, &agent{status: Status{Storage: &Storage{Error: "full", Since: at}}}); len(r.Losses) != 1 || !strings.HasSuffix(losses(r)[0], ": full") {
		t.Errorf("%q", losses(r))
	}
}

// seeds are those of an agent with a seed.
type seeds struct {
	pod *NewPod
	err error
}

func (s seeds) Seed() ([]byte, error)                   { return []byte("seed"), s.err }
func (s seeds) NewPod(context.Context) (*NewPod, error) { return s.pod, s.err }

func TestARehearsalSaysWhatANewPodWouldGet(t *testing.T) {
	state := &agent{status: Status{Storage: &Storage{Durable: true}}}
	for name, tc := range map[string]struct {
		seeds Seeds
		lost  string
		text  string
	}{
		"no seed":       {seeds{}, "", "A new pod would get nothing: what is stored belongs to this one, and there is no --seed"},
		"no use of one": {seeds{err: errors.New("seed /x: it is empty")}, "the start of a new pod: everything: seed /x: it is empty", "because its seed cannot be used: see above"},
		"a seed": {
			seeds{pod: &NewPod{Place: "/x", Role: "web", At: time.Now().Add(-time.Hour), Resources: map[string]int{"LDS": 1, "CDS": 2}, LeftOut: map[string]int{"a Secret": 1}}},
			"the start of a new pod: 1 resource: not in the seed: a Secret", `A new pod would be served the seed /x of the role "web", from 1h ago: 2 CDS, 1 LDS.`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r Rehearsal
			got := ask(server(t, Config{State: state, Seeds: tc.seeds}).full(true), "GET", "/rehearsal")
			if err := json.Unmarshal(got.Body.Bytes(), &r); err != nil {
				t.Fatalf("%v\n%s", err, got.Body)
			}
			if got := strings.Join(losses(r), "; "); got != tc.lost {
				t.Errorf("lost: %s", got)
			}
			var text strings.Builder
			if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), tc.text) {
				t.Errorf("%v\n%s", err, text.String())
			}
		})
	}
}

// Envoy as the agent's child sees the files that the agent sees.
func TestARehearsalFindsFilesThatDoNotExist(t *testing.T) {
	there := filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(there, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(path string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
	}
	body, err := anypb.New(&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: file(there), PrivateKey: file(there + ".key")}}})
	if err != nil {
		t.Fatal(err)
	}
	state := &agent{
		status:    Status{Groups: []Group{{NodeID: "web"}}, Storage: &Storage{Durable: true}, Envoy: &envoy.Status{}},
		resources: []Resource{{Group: "web", Type: xds.SecretType, Name: "s", Body: body}},
	}
	if got := strings.Join(losses(rehearsed(t, state)), "; "); got != "a restart of Envoy: SDS s: it refers to the file "+there+".key, which does not exist" {
		t.Errorf("lost: %s", got)
	}
	state.status.Envoy = nil // another container may have the file
	if r := rehearsed(t, state); r.Lost() {
		t.Errorf("lost: %v", losses(r))
	}
}
