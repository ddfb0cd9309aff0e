package admin

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/explain"
	"github.com/holdfast-xds/holdfast/agent/probe"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
)

// WriteText writes the status for a person: first the problems, then the resources and where they
// come from, and the connected clients.
func (s Status) WriteText(w io.Writer) error {
	var b bytes.Buffer
	state := "ready"
	for _, c := range s.Conditions {
		if !c.OK {
			state = "NOT READY"
		}
	}
	fmt.Fprintf(&b, "holdfast %s, up %s: %s\n", Printable(s.Version), age(s.Now, s.Started), state)
	if problems := s.Problems(); len(problems) > 0 {
		b.WriteString("\nProblems\n")
		for _, p := range problems {
			fmt.Fprintf(&b, "  %s\n", Printable(p.Text))
		}
	}
	for _, g := range s.Groups {
		s.writeGroup(&b, g)
	}
	if len(s.Groups) > 0 {
		b.WriteString(legend)
	}
	if e := s.Envoy; e != nil {
		fmt.Fprintf(&b, "\nEnvoy %s\n", Printable(envoyLine(e, s.Now)))
	}
	if r := s.Shadow; r != nil {
		b.WriteByte('\n')
		_ = r.WriteText(&b, s.Now) // a buffer takes all
	}
	if w := s.Workload; w != nil {
		fmt.Fprintf(&b, "\nWorkload, probed with %s: %s\n", Printable(w.Check), Printable(workloadLine(w, s.Now)))
	}
	writeCertificates(&b, s.Certificates, s.Now)
	if st := s.Storage; st != nil {
		fmt.Fprintf(&b, "\nLast known good in %s: generation %d, %d bytes, written %s\n", Printable(st.Dir), st.Generation, st.Bytes, ago(s.Now, st.Committed))
		for _, reason := range slices.Sorted(maps.Keys(st.NotStored)) {
			fmt.Fprintf(&b, "  not stored, so missing after a restart without the control plane: %s: %s\n", plural(st.NotStored[reason], "record"), Printable(reason))
			st.writeMissing(&b, reason)
		}
		if !st.Encrypted && len(st.Missing) > 0 {
			b.WriteString("  with --state-key-file, resources that hold a secret are stored too, encrypted\n")
		}
	}
	if p := s.Publishing; p != nil {
		what := "none was published yet"
		if !p.There.IsZero() {
			what = "taken " + ago(s.Now, p.There)
		}
		if p.Waits != "" {
			what += ": " + p.Waits
		}
		fmt.Fprintf(&b, "\nSeed in %s: %s\n", Printable(p.Place), what)
	}
	if len(s.Groups) == 0 {
		b.WriteString("\nNo client has connected yet, and no node is configured (--bootstrap, --node-id).\n")
	}
	s.writeStreams(&b)
	_, err := w.Write(b.Bytes())
	return err
}

// legend explains the table of types.
const legend = `
CACHED: resources in the cache, by the clients' answer to their newest version: ACKED, NACKED,
PENDING (none yet) or SUSPECT (in a NACKed response with others). LEASED: names of disconnected clients.
`

// at returns the flag with which a command reaches this agent, with a space before it.
func (s Status) at() string {
	if s.Admin == "" || s.Admin == DefaultAddr {
		return ""
	}
	return " --admin " + s.Admin
}

// HeldBack describes what is held back of a type.
func (t *Type) HeldBack() xds.HeldBack {
	return xds.HeldBack{Type: t.Type, Had: t.Had, HeldBack: t.Withheld, Since: t.WithheldSince}
}

// line describes what is held back. at is as in Status.
func (f *Fallback) line(now time.Time, at string) string {
	const most = 3
	var names []string
	for _, s := range f.Suspects[:min(most, len(f.Suspects))] {
		names = append(names, s.Type+" "+s.Name)
	}
	if more := len(f.Suspects) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("Envoy crashed repeatedly: %s held back for %s, until the control plane changes them, `holdfast resume%s`, or %s: %s",
		plural(len(f.Suspects), "resource"), age(now, f.Since), at, f.Until.UTC().Format(time.RFC3339), strings.Join(names, ", "))
}

// workloadLine describes the health of the workload.
func workloadLine(w *probe.Status, now time.Time) string {
	line := "unknown, and not reported"
	if w.State != probe.Unknown {
		line = string(w.State) + " for " + age(now, w.Since)
	}
	switch {
	case w.Reason != "":
		line += ": " + w.Reason
	case w.LastError != "":
		line += "; the last probe failed: " + w.LastError
	}
	if w.Draining != "" {
		line += "; reported as unhealthy: " + w.Draining
	}
	return line
}

func envoyLine(e *envoy.Status, now time.Time) string {
	if e.PID == 0 {
		if e.Restarts == 0 {
			return "is not started yet"
		}
		return fmt.Sprintf("is not running: it exited with code %d, after %d crashes", e.LastExit, e.Restarts)
	}
	line := fmt.Sprintf("%s, process %d, epoch %d, up %s: %s", e.Version, e.PID, e.Epoch, age(now, e.Since), cmp.Or(e.State, "does not answer"))
	if e.Draining {
		line += ", draining"
	}
	if e.Restarts > 0 {
		line += fmt.Sprintf("; crashed %d times, last with exit code %d", e.Restarts, e.LastExit)
	}
	return line
}

// maxMissing bounds how many resources a line names.
const maxMissing = 5

// writeMissing names the resources that are not stored for one reason.
func (s *Storage) writeMissing(b *bytes.Buffer, reason string) {
	var names []string
	for _, r := range s.Missing {
		if r.Reason == reason {
			names = append(names, r.Type+" "+strconv.Quote(r.Name))
		}
	}
	if len(names) == 0 {
		return
	}
	more := ""
	if n := max(s.NotStored[reason], len(names)); n > maxMissing {
		names, more = names[:min(maxMissing, len(names))], ", …"
	}
	fmt.Fprintf(b, "    %s%s\n", strings.Join(names, ", "), more)
}

func (s Status) writeGroup(b *bytes.Buffer, g Group) {
	fmt.Fprintf(b, "\nNode %q, cluster %q", g.NodeID, g.Cluster)
	if g.UserAgent != "" {
		fmt.Fprintf(b, ", %s", Printable(g.UserAgent))
	}
	b.WriteString("\n")
	switch {
	case g.Contact.IsZero():
		b.WriteString("No control plane has answered yet.\n")
	case g.Restored > 0:
		from := "restored from disk"
		if g.Seed != nil && g.Seed.Used {
			from = "taken from a seed"
		}
		fmt.Fprintf(b, "%s %s, not confirmed by a control plane yet; last contact %s.\n", plural(g.Restored, "resource"), from, ago(s.Now, g.Contact))
	}
	t := newTable(b, "UPSTREAM", "PRIORITY", "STATE", "SINCE", "LAST MESSAGE")
	for _, u := range g.Upstreams {
		t.row(u.Name, strconv.Itoa(u.Priority), u.state(), age(s.Now, u.Since), u.lastMessage(s.Now))
	}
	t.end()
	for _, u := range g.Upstreams {
		if u.Route != "" {
			fmt.Fprintf(b, "  %s is reached %s.\n", u.Name, u.Route)
		}
	}
	b.WriteByte('\n')
	t = newTable(b, "TYPE", "KNOWN", "CACHED", "ACKED", "PENDING", "SUSPECT", "NACKED", "SUBSCRIBED", "LEASED", "LAST UPDATE")
	for _, ty := range g.Types {
		cached := 0
		for _, n := range ty.Resources {
			cached += n
		}
		of := func(s xds.Status) string { return strconv.Itoa(ty.Resources[s.String()]) }
		t.row(ty.Type, ty.Knowledge, strconv.Itoa(cached),
			of(xds.Acked), of(xds.Pending), of(xds.Suspect), of(xds.Nacked),
			strconv.Itoa(ty.Subscriptions), strconv.Itoa(ty.Leased), ago(s.Now, ty.LastUpdate))
	}
	t.end()
}

// errorNames lists the names with errors in brackets; "" if none is known.
func (t Type) errorNames() string {
	if len(t.ErrorNames) == 0 {
		return ""
	}
	more := ""
	if t.Errors > len(t.ErrorNames) {
		more = ", …"
	}
	return " (" + strings.Join(t.ErrorNames, ", ") + more + ")"
}

func (u Upstream) state() string {
	switch {
	case u.Stale:
		return "in use, silent for too long"
	case u.Connected && u.Active:
		return "connected, in use"
	case u.Connected && (u.Attempts > 0 || u.LastMessage.IsZero()):
		return "connected, not answered"
	case u.Connected:
		return "connected"
	case u.Active:
		return "disconnected, its resources in use"
	case u.Attempts > 0 || u.LastError != "":
		return "disconnected"
	case !u.Since.IsZero():
		return "not in use"
	}
	return "not tried"
}

func (s Status) writeStreams(b *bytes.Buffer) {
	if len(s.Streams) == 0 {
		b.WriteString("\nNo client is connected.\n")
		return
	}
	b.WriteString("\nClients\n")
	t := newTable(b, "STREAM", "NODE", "FROM", "PROTOCOL", "SINCE", "SUBSCRIBED", "TYPES")
	for _, st := range s.Streams {
		t.row(strconv.FormatUint(st.ID, 10), st.NodeID, cmp.Or(st.Peer, "socket"), st.Protocol, age(s.Now, st.Since),
			strconv.Itoa(st.Subscriptions), strings.Join(st.Types, " "))
	}
	t.end()
}

// writeCertificates writes the certificates for a person; s may be nil.
func writeCertificates(b *bytes.Buffer, s *sds.Status, now time.Time) {
	if s == nil {
		return
	}
	b.WriteString("\nCertificates\n")
	t := newTable(b, "SECRET", "FROM", "FOR", "SERIAL", "ISSUER", "EXPIRES", "RENEWAL", "ISSUED")
	for _, id := range s.Identities {
		t.row(id.Secret, id.CA, id.Names, id.Serial, id.Issuer, in(now, id.NotAfter), in(now, id.Next), fmt.Sprint(id.Issued))
	}
	for _, f := range s.Files {
		t.row(f.Name, "files", "", "", "", "", "", "")
	}
	t.end()
	b.WriteByte('\n')
	t = newTable(b, "TRUST DOMAIN", "FROM", "ROOT", "SERIAL", "EXPIRES", "REMOVED BY SOURCE")
	for _, r := range s.Roots {
		left := ""
		if !r.Left.IsZero() {
			left = ago(now, r.Left)
		}
		t.row(r.Domain, r.CA, r.Subject, r.Serial, in(now, r.NotAfter), left)
	}
	t.end()
}

// table writes aligned columns, and nothing without rows.
type table struct {
	w    *tabwriter.Writer
	head []string
}

func newTable(b *bytes.Buffer, head ...string) *table {
	return &table{tabwriter.NewWriter(b, 0, 0, 2, ' ', 0), head}
}

func (t *table) row(cells ...string) {
	if t.head != nil {
		fmt.Fprintf(t.w, "  %s\n", strings.Join(t.head, "\t"))
		t.head = nil
	}
	for i, c := range cells {
		if cells[i] = Printable(c); c == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintf(t.w, "  %s\n", strings.Join(cells, "\t"))
}

func (t *table) end() { _ = t.w.Flush() } // into a Buffer, which takes everything

// Printable replaces characters that would move the cursor of a terminal.
func Printable(s string) string { return explain.Printable(s) }

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// lastMessage returns when the upstream last sent a message. A directory of files does not count them.
func (u Upstream) lastMessage(now time.Time) string {
	if u.Active && u.LastMessage.IsZero() {
		return "-"
	}
	return ago(now, u.LastMessage)
}

func ago(now, at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return age(now, at) + " ago"
}

// in returns how far away a time is, which is usually in the future.
func in(now, at time.Time) string {
	switch {
	case at.IsZero():
		return ""
	case at.Before(now):
		return ago(now, at)
	}
	return "in " + age(at, now)
}

// was returns the verb for a time, which is usually in the future: "is" or "was".
func was(now, at time.Time) string {
	if at.Before(now) {
		return "was"
	}
	return "is"
}

// age is the time from at to now in its two largest units; "-" for the zero time.
func age(now, at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	d := max(0, now.Sub(at))
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units[:3] {
		if d >= u.size {
			s := fmt.Sprintf("%d%s", d/u.size, u.name)
			if rest := d % u.size / units[i+1].size; rest > 0 {
				s += fmt.Sprintf("%d%s", rest, units[i+1].name)
			}
			return s
		}
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
