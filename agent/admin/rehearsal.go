package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Rehearsal says what would be if the control plane went away now. It follows from what the agent knows:
// nothing is tried.
type Rehearsal struct {
	At     time.Time        `json:"at"`
	Groups []RehearsedGroup `json:"groups"`
	// NewPod is the seed that a new pod would be served; nil if there is none.
	NewPod *NewPod `json:"new_pod,omitempty"`
	// Losses are what would be missing.
	Losses []Loss `json:"losses"`
	// Ends are what would end if the control plane stayed away, the first one first.
	Ends []End `json:"ends"`
}

// RehearsedGroup is what the clients of a node would get.
type RehearsedGroup struct {
	Node string `json:"node"`
	// Served counts the resources by short name of their type, for a running Envoy and for one that
	// restarts. Stored counts those that would be there after a restart of the agent, too; it is nil if so
	// many cannot be stored that they are not known by name.
	Served map[string]int `json:"served"`
	Stored map[string]int `json:"stored"`
	// HeldBack says of each type of which something is held back what that is, in a sentence.
	HeldBack []string `json:"held_back,omitempty"`
}

// Loss is something that would be missing.
type Loss struct {
	// After is what it is missing after: "the loss of the control plane", "a restart of Envoy", "a restart of the agent"
	// or "the start of a new pod".
	After string `json:"after"`
	Node  string `json:"node,omitempty"`
	What  string `json:"what"`
	Why   string `json:"why"`
}

// End is something that would end.
type End struct {
	At   time.Time `json:"at"`
	Node string    `json:"node,omitempty"`
	What string    `json:"what"`
	Then string    `json:"then"`
}

// The events after which something is missing.
const (
	afterLoss    = "the loss of the control plane"
	afterRestart = "a restart of the agent"
	afterNewPod  = "the start of a new pod"
	afterEnvoy   = "a restart of Envoy"
)

// Lost reports whether something would be lost.
func (r *Rehearsal) Lost() bool { return len(r.Losses) > 0 }

// rehearse returns what would be if the control plane went away now.
func (s *Server) rehearse(ctx context.Context) *Rehearsal {
	st := s.snapshot()
	r := &Rehearsal{At: st.Now, Groups: []RehearsedGroup{}, Losses: []Loss{}, Ends: []End{}}
	for _, c := range st.Conditions {
		if !c.OK {
			r.lose(afterLoss, "", "readiness", c.Name+": "+c.Reason)
		}
	}
	groups := make(map[string]*RehearsedGroup)
	for _, g := range st.Groups {
		rehearsed := RehearsedGroup{Node: g.NodeID, Served: make(map[string]int), Stored: make(map[string]int)}
		for _, t := range g.Types {
			if t.Withheld > 0 {
				rehearsed.HeldBack = append(rehearsed.HeldBack, fmt.Sprintf("%s: %s: clients keep what they have until it is back and confirms that", t.Type, t.HeldBack()))
			}
		}
		r.Groups = append(r.Groups, rehearsed)
		r.group(&g)
	}
	for i := range r.Groups {
		groups[r.Groups[i].Node] = &r.Groups[i]
	}
	notStored := make(map[[2]string]bool)
	if st.Storage != nil {
		named, total := len(st.Storage.Missing), 0
		for _, n := range st.Storage.NotStored {
			total += n
		}
		for i := range r.Groups {
			if named < total {
				r.Groups[i].Stored = nil
			}
		}
		for _, m := range st.Storage.Missing {
			notStored[[2]string{m.Type, m.Name}] = true
		}
	}
	for res := range s.cfg.State.Resources(Filter{}) {
		if g := groups[res.Group]; g != nil && res.served() != nil {
			kind := xds.Short(res.Type)
			g.Served[kind]++
			if g.Stored != nil && st.Storage != nil && st.Storage.Durable && !notStored[[2]string{kind, res.Name}] {
				g.Stored[kind]++
			}
			r.resource(&res)
			if st.Envoy != nil { // it sees the same files
				r.files(&res)
			}
		}
	}
	r.storage(st.Storage)
	r.certificates(st)
	r.newPod(ctx, s.cfg.Seeds)
	slices.SortStableFunc(r.Ends, func(a, b End) int { return a.At.Compare(b.At) })
	return r
}

func (r *Rehearsal) lose(after, node, what, why string) {
	r.Losses = append(r.Losses, Loss{after, node, what, why})
}

// group adds what is missing for the clients of a node.
func (r *Rehearsal) group(g *Group) {
	for _, t := range g.Types {
		if t.Errors > 0 {
			r.lose(afterLoss, g.NodeID, plural(t.Errors, "requested "+t.Type+" resource")+t.errorNames(), "the control plane did not provide them")
		}
		if t.Knowledge == xds.Unknown.String() && t.Subscriptions > 0 {
			r.lose(afterLoss, g.NodeID, "all "+t.Type, "the control plane has never answered for this type")
		}
	}
	for _, d := range g.Dangling {
		r.lose(afterLoss, g.NodeID, "the cluster "+d.Cluster, d.Type+" "+d.Name+" leads to it, and the control plane did not send it")
	}
	if !g.NotServedFrom.IsZero() {
		r.Ends = append(r.Ends, End{g.NotServedFrom, g.NodeID, "--max-stale", "clients that connect newly are not served; connected ones keep what they have"})
	}
	if f := g.Freeze; f != nil && f.NotStored > 0 {
		r.lose(afterRestart, g.NodeID, "the freeze of "+plural(f.NotStored, "resource"), "they cannot be stored")
	}
}

// resource adds the end of a resource.
func (r *Rehearsal) resource(res *Resource) {
	what := xds.Short(res.Type) + " " + res.Name
	if !res.Deadline.IsZero() {
		r.Ends = append(r.Ends, End{res.Deadline, res.Group, what, "its TTL ends: clients get it no more"})
	}
	if res.Type != xds.SecretType {
		return
	}
	if at := CertificateEnd(res.served()); !at.IsZero() {
		r.Ends = append(r.Ends, End{at, res.Group, what, "its certificate ends: connections fail"})
	}
}

// files adds the files that a resource refers to and that do not exist. Only Envoy as the agent's child sees the files that
// the agent sees.
func (r *Rehearsal) files(res *Resource) {
	for _, path := range references.Files(res.served()) {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			r.lose(afterEnvoy, res.Group, xds.Short(res.Type)+" "+res.Name, "it refers to the file "+path+", which does not exist")
		}
	}
}

// CertificateEnd returns when the certificate of a Secret ends; the zero time if it has none that can be
// read.
func CertificateEnd(body *anypb.Any) time.Time {
	secret := &tlsv3.Secret{}
	if body.UnmarshalTo(secret) != nil {
		return time.Time{}
	}
	chain := secret.GetTlsCertificate().GetCertificateChain()
	text := cmp.Or(string(chain.GetInlineBytes()), chain.GetInlineString())
	certs, err := pki.ParseCerts([]byte(text))
	if err != nil || len(certs) == 0 {
		return time.Time{}
	}
	return certs[0].NotAfter
}

// storage adds what is not on disk; s is nil if there is none.
func (r *Rehearsal) storage(s *Storage) {
	switch {
	case s == nil:
		r.lose(afterRestart, "", "everything", "there is no --state-dir: what is served is in memory only")
		return
	case !s.Durable:
		r.lose(afterRestart, "", "what changed since "+s.Since.UTC().Format(time.RFC3339), cmp.Or(s.Error, "the state directory is not open yet"))
	}
	for _, reason := range slices.Sorted(maps.Keys(s.NotStored)) {
		var names []string
		for _, m := range s.Missing {
			if m.Reason == reason && len(names) < maxMissing {
				names = append(names, m.Type+" "+m.Name)
			}
		}
		if more := s.NotStored[reason] - len(names); more > 0 {
			names = append(names, fmt.Sprintf("%d more", more))
		}
		r.lose(afterRestart, "", strings.Join(names, ", "), "not stored: "+reason)
	}
	for _, l := range s.Lost {
		r.lose(afterLoss, "", l.Type+" "+l.Name, "it was not stored before the last restart, and is missing already: "+l.Reason)
	}
}

// certificates adds what ends of the certificates that the agent makes. Their authority is not the control
// plane, so that they are renewed as long as it is there.
func (r *Rehearsal) certificates(st Status) {
	if st.Certificates == nil {
		return
	}
	for _, id := range st.Certificates.Identities {
		for i, e := range r.Ends {
			if strings.HasSuffix(e.What, " "+id.Secret) && e.At.Equal(id.NotAfter) {
				r.Ends[i].Then = "its certificate ends, unless " + id.CA + " renews it"
			}
		}
	}
}

// WriteText writes the rehearsal for a person.
func (r *Rehearsal) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "If the control plane went away now\n")
	for _, g := range r.Groups {
		fmt.Fprintf(&b, "\nnode %q would be served, also after a restart of Envoy, and after one of the agent\n", Printable(g.Node))
		t := newTable(&b, "TYPE", "SERVED", "AFTER A RESTART OF THE AGENT")
		for _, kind := range slices.SortedFunc(maps.Keys(g.Served), xds.CompareShort) {
			stored := "?"
			if g.Stored != nil {
				stored = fmt.Sprint(g.Stored[kind])
			}
			t.row(kind, fmt.Sprint(g.Served[kind]), stored)
		}
		t.end()
		for _, line := range g.HeldBack {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if len(r.Losses) == 0 {
		b.WriteString("\nNothing would be missing.\n")
	} else {
		b.WriteString("\nWhat would be missing\n")
	}
	for _, l := range r.Losses {
		fmt.Fprintf(&b, "  after %s: %s: %s\n", l.After, Printable(l.What), Printable(l.Why))
	}
	if len(r.Ends) > 0 {
		b.WriteString("\nWhat would end, if it stayed away\n")
	}
	for i, e := range r.Ends {
		if i == maxEnds {
			fmt.Fprintf(&b, "  … and %d more\n", len(r.Ends)-i)
			break
		}
		fmt.Fprintf(&b, "  %s (%s)  %s: %s\n", e.At.UTC().Format(time.RFC3339), in(r.At, e.At), Printable(e.What), e.Then)
	}
	fmt.Fprintf(&b, "\n%s\n", Printable(r.newPodLine()))
	_, err := w.Write(b.Bytes())
	return err
}

// maxEnds bounds the ends that are written for a person.
const maxEnds = 20

func (s *Server) rehearsal(w http.ResponseWriter, r *http.Request) {
	known := s.rehearse(r.Context())
	s.cfg.Metrics.Rehearsed(KnownKind, known.At, len(known.Losses))
	writeJSON(w, http.StatusOK, known)
}

// Rehearsal returns what would be if the control plane went away now.
func (c Client) Rehearsal(ctx context.Context) (r *Rehearsal, err error) {
	err = c.get(ctx, "/rehearsal", nil, func(body io.Reader) error { return json.NewDecoder(body).Decode(&r) })
	return r, err
}
