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
	"unicode"

	"github.com/holdfast-xds/holdfast/agent/envoy"
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
	fmt.Fprintf(&b, "holdfast %s, up %s: %s\n", printable(s.Version), age(s.Now, s.Started), state)
	if problems := s.problems(); len(problems) > 0 {
		b.WriteString("\nProblems\n")
		for _, line := range problems {
			fmt.Fprintf(&b, "  %s\n", printable(line))
		}
	}
	for _, g := range s.Groups {
		s.writeGroup(&b, g)
	}
	if len(s.Groups) > 0 {
		b.WriteString(legend)
	}
	if e := s.Envoy; e != nil {
		fmt.Fprintf(&b, "\nEnvoy %s\n", printable(envoyLine(e, s.Now)))
	}
	writeCertificates(&b, s.Certificates, s.Now)
	if st := s.Storage; st != nil {
		fmt.Fprintf(&b, "\nLast known good in %s: generation %d, %d bytes, written %s\n", printable(st.Dir), st.Generation, st.Bytes, ago(s.Now, st.Committed))
		for _, reason := range slices.Sorted(maps.Keys(st.NotStored)) {
			fmt.Fprintf(&b, "  not stored, so missing after a restart without the control plane: %s: %s\n", plural(st.NotStored[reason], "record"), printable(reason))
			st.writeMissing(&b, reason)
		}
		if !st.Encrypted && len(st.Missing) > 0 {
			b.WriteString("  with --state-key-file, resources that hold a secret are stored too, encrypted\n")
		}
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

// problems are lines for an operator.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// addIf adds a line if there is the problem.
func (p *problems) addIf(is bool, format string, args ...any) {
	if is {
		p.add(format, args...)
	}
}

// problems lists what an operator should look at, worst first.
func (s Status) problems() problems {
	var lines problems
	for _, c := range s.Conditions {
		lines.addIf(!c.OK, "%s: %s", c.Name, c.Reason)
	}
	if s.Storage != nil {
		lost := s.Storage.Lost
		for _, r := range lost[:min(maxMissing, len(lost))] {
			lines.add("%s %s is missing until a control plane answers, because it was not stored: %s", r.Type, r.Name, r.Reason)
		}
		lines.addIf(len(lost) > maxMissing, "… and %d more of them", len(lost)-maxMissing)
	}
	for _, g := range s.Groups {
		for _, u := range g.Upstreams {
			since := "never connected"
			if !u.Since.IsZero() {
				since = "not connected for " + age(s.Now, u.Since)
			}
			lines.addIf(u.LastError != "" && !u.Connected, "upstream %s: %s, %s: %s", u.Name, since, plural(u.Attempts, "attempt"), u.LastError)
		}
		if g.Fallback != nil {
			lines.add("node %q: %s", g.NodeID, g.Fallback.line(s.Now, s.at()))
		}
		lines.addIf(g.ShortLives > 0, "node %q: Envoy disconnected %d times in a row within a minute of its start: look at its log, it may be crashing", g.NodeID, g.ShortLives)
		for _, d := range g.Dangling[:min(maxMissing, len(g.Dangling))] {
			lines.add("%s %s leads to the cluster %s, which the control plane did not send: requests to it get 503, unless Envoy's bootstrap has it; `holdfast explain%s %s/%s` shows more",
				d.Type, d.Name, d.Cluster, s.at(), d.Type, d.Name)
		}
		lines.addIf(g.DanglingTotal > maxMissing, "… and %d more clusters that are not there", g.DanglingTotal-maxMissing)
		for _, t := range g.Types {
			dump := fmt.Sprintf("`holdfast dump%s --type %s` shows", s.at(), t.Type)
			nacked, suspect := t.Resources[xds.Nacked.String()], t.Resources[xds.Suspect.String()]
			lines.addIf(t.Withheld > 0, "%s: %s held back because they look like an accident", t.Type, plural(t.Withheld, "removal"))
			lines.addIf(t.Errors > 0, "%s: control plane did not provide %s%s: %s the errors",
				t.Type, plural(t.Errors, "requested resource"), t.errorNames(), dump)
			lines.addIf(nacked > 0, "%s: %s NACKed by clients of node %q: %s why", t.Type, plural(nacked, "resource"), g.NodeID, dump)
			lines.addIf(suspect > 0, "%s: a response was NACKed by clients of node %q, and %s may be the cause: %s why",
				t.Type, g.NodeID, plural(suspect, "resource"), dump)
		}
	}
	lines = append(lines, certificateProblems(s.Certificates, s.Now)...)
	lines = append(lines, s.Storage.problems(s.Now)...)
	for _, f := range s.Files {
		lines.add("file %s: %s (its last valid content stays in use)", f.Name, f.Error)
	}
	return lines
}

// at returns the flag with which a command reaches this agent, with a space before it.
func (s Status) at() string {
	if s.Admin == "" || s.Admin == DefaultAddr {
		return ""
	}
	return " --admin " + s.Admin
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

// problems lists the problems with the disk; s may be nil.
func (s *Storage) problems(now time.Time) (lines problems) {
	if s == nil {
		return nil
	}
	switch {
	case !s.Durable && s.Error == "":
		lines.add("state on disk: changes are in memory only until the state directory is open")
	case !s.Durable:
		lines.add("state on disk: changes are in memory only, since %s: %s", ago(now, s.Since), s.Error)
	default:
		lines.addIf(s.Error != "", "state on disk: %s", s.Error)
	}
	lines.addIf(s.Damage != "", "state on disk: it was damaged when the agent started; the readable part is served until a control plane changes it: %s", s.Damage)
	for _, name := range s.Aside {
		lines.add("state on disk: %s was set aside and is not used: delete it, or stop holdfast and rename it back", name)
	}
	return lines
}

func (s Status) writeGroup(b *bytes.Buffer, g Group) {
	fmt.Fprintf(b, "\nNode %q, cluster %q", g.NodeID, g.Cluster)
	if g.UserAgent != "" {
		fmt.Fprintf(b, ", %s", printable(g.UserAgent))
	}
	b.WriteString("\n")
	switch {
	case g.Contact.IsZero():
		b.WriteString("No control plane has answered yet.\n")
	case g.Restored > 0:
		fmt.Fprintf(b, "%s restored from disk, not confirmed by a control plane yet; last contact %s.\n", plural(g.Restored, "resource"), ago(s.Now, g.Contact))
	}
	t := newTable(b, "UPSTREAM", "PRIORITY", "STATE", "SINCE", "LAST MESSAGE")
	for _, u := range g.Upstreams {
		t.row(u.Name, strconv.Itoa(u.Priority), u.state(), age(s.Now, u.Since), u.lastMessage(s.Now))
	}
	t.end()
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

// certificateProblems lists the problems with certificates; s may be nil.
func certificateProblems(s *sds.Status, now time.Time) (lines problems) {
	if s == nil {
		return nil
	}
	for _, id := range s.Identities {
		attempts := plural(id.Attempts, "attempt")
		switch valid := now.Before(id.NotAfter); {
		case id.Error == "" && (id.Serial == "" || valid):
		case id.Serial == "":
			lines.add("certificate %s: none yet from %s, %s: %s", id.Secret, id.CA, attempts, id.Error)
		case valid:
			lines.add("certificate %s: not renewed after %s; the one in use expires %s: %s", id.Secret, attempts, in(now, id.NotAfter), id.Error)
		default:
			line := fmt.Sprintf("certificate %s: expired %s, and is still served; %s since: %s", id.Secret, ago(now, id.NotAfter), attempts, id.Error)
			lines.add("%s", strings.TrimSuffix(line, ": "))
		}
	}
	for _, fault := range s.Faults {
		lines.add("certificates: %s (the current certificates stay in use)", fault)
	}
	for _, f := range s.Files {
		lines.addIf(f.Error != "", "secret %s: %s", f.Name, f.Error)
	}
	return lines
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
		if cells[i] = printable(c); c == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintf(t.w, "  %s\n", strings.Join(cells, "\t"))
}

func (t *table) end() { _ = t.w.Flush() } // into a Buffer, which takes everything

// printable replaces characters that would move the cursor of a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

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
