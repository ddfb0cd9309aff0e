package admin

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/holdfast-xds/holdfast/agent/probe"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
)

// Level says how bad a problem is.
type Level string

const (
	// Failing: requests fail or will fail, or something is lost.
	Failing Level = "error"
	// Degraded: clients have what they need, and somebody should look.
	Degraded Level = "warning"
)

// Problem is something that an operator should look at. The text says how long it has been there, if that is
// known, and has a command that tells more in backquotes, if there is one.
type Problem struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Since is when it began; the zero time if that is not known.
	Since time.Time `json:"since,omitzero"`
}

// OtherNodeAfter is how long two Envoys of one node may differ, as while one replaces the other, before it is said.
const OtherNodeAfter = time.Minute

type problems []Problem

func (p *problems) add(format string, args ...any) { p.addIf(true, format, args...) }

// addIf adds an error if there is the problem.
func (p *problems) addIf(is bool, format string, args ...any) {
	if is {
		*p = append(*p, Problem{Level: Failing, Text: fmt.Sprintf(format, args...)})
	}
}

// warnIf adds a warning if there is the problem.
func (p *problems) warnIf(is bool, format string, args ...any) {
	if is {
		*p = append(*p, Problem{Level: Degraded, Text: fmt.Sprintf(format, args...)})
	}
}

// since says of the problems from number n on when they began.
func (p problems) since(n int, at time.Time) {
	for i := n; i < len(p); i++ {
		p[i].Since = at
	}
}

// lasting is how long something has lasted, with a comma before it; "" if that is not known.
func lasting(now, since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return ", for " + age(now, since)
}

// Problems lists what an operator should look at, worst first.
func (s Status) Problems() []Problem {
	var lines problems
	for _, c := range s.Conditions {
		n := len(lines)
		lines.addIf(!c.OK, "%s%s: %s", c.Name, lasting(s.Now, c.Since), c.Reason)
		lines.since(n, c.Since)
	}
	if s.Storage != nil {
		lost := s.Storage.Lost
		for _, r := range lost[:min(maxMissing, len(lost))] {
			lines.add("%s %s is missing until a control plane answers, because it was not stored: %s; `holdfast explain%s %s` shows what needs it",
				r.Type, r.Name, r.Reason, s.at(), quoted(r.Type+"/"+r.Name))
		}
		lines.addIf(len(lost) > maxMissing, "… and %d more of them", len(lost)-maxMissing)
	}
	if n := len(lines); !s.NoEnvoySince.IsZero() && s.Now.Sub(s.NoEnvoySince) >= noEnvoy {
		lines.add("no Envoy is connected, for %s: nothing takes what is served. Does it run, with the socket of this agent in its bootstrap? `holdfast events%s` shows what became of it", age(s.Now, s.NoEnvoySince), s.at())
		lines.since(n, s.NoEnvoySince)
	}
	for _, g := range s.Groups {
		lines = append(lines, s.groupProblems(g)...)
	}
	if w := s.Workload; w != nil {
		n := len(lines)
		lines.warnIf(w.State == probe.Unhealthy, "the workload is unhealthy for %s, and the control plane is told so: %s: %s", age(s.Now, w.Since), w.Check, w.Reason)
		lines.since(n, w.Since)
	}
	if p := s.Publishing; p != nil {
		lines.warnIf(p.Error != "", "seed not published to %s: %s; `holdfast events%s` shows since when", p.Place, p.Error, s.at())
	}
	for _, st := range s.Streams {
		for _, kind := range slices.SortedFunc(maps.Keys(st.Unanswered), xds.CompareShort) {
			n := len(lines)
			lines.warnIf(s.Now.Sub(st.Unanswered[kind]) >= noAnswer, "stream %d of node %q: the client has not answered for %s for %s: it hangs, or a cluster that it warms waits for something, which `/init_dump` of Envoy's admin interface shows", st.ID, st.NodeID, kind, age(s.Now, st.Unanswered[kind]))
			lines.since(n, st.Unanswered[kind])
		}
	}
	if r := s.Shadow; r != nil {
		for _, c := range r.Counts {
			lines.add("shadow: %d %s: %s", c.N, c.Type, c.Kind.Explain())
		}
	}
	lines = append(lines, certificateProblems(s.Certificates, s.Now)...)
	lines = append(lines, s.Storage.problems(s.Now)...)
	lines = append(lines, s.Output.problems(s.Now)...)
	for _, f := range s.Files {
		lines.warnIf(true, "file %s: %s (its last valid content stays in use)", f.Name, f.Error)
	}
	slices.SortStableFunc(lines, func(a, b Problem) int { return strings.Compare(string(a.Level), string(b.Level)) }) // "error" first
	return lines
}

// groupProblems lists the problems of one group.
func (s Status) groupProblems(g Group) (lines problems) {
	for _, u := range g.Upstreams {
		since := "never connected"
		if !u.Since.IsZero() {
			since = "not connected for " + age(s.Now, u.Since)
		}
		n := len(lines)
		lines.warnIf(u.LastError != "" && !u.Connected, "upstream %s: %s, %s: %s; `holdfast events%s` shows how it went", u.Name, since, plural(u.Attempts, "attempt"), u.LastError, s.at())
		lines.since(n, u.Since)
	}
	n := len(lines)
	if g.Seed != nil {
		lines.warnIf(g.Seed.Used, "node %q: %s", g.NodeID, g.Seed.line(s.Now))
		lines.addIf(g.Seed.Error != "", "node %q: no control plane answers, nothing is stored, and the seed cannot be used: %s", g.NodeID, g.Seed.Error)
		lines.since(n, g.Seed.Since)
	}
	n = len(lines)
	if g.Freeze != nil {
		lines.warnIf(true, "node %q: %s", g.NodeID, g.Freeze.Line(s.Now, s.at()))
		lines.since(n, g.Freeze.Since)
	}
	n = len(lines)
	if g.Fallback != nil {
		lines.add("node %q: %s", g.NodeID, g.Fallback.line(s.Now, s.at()))
		lines.since(n, g.Fallback.Since)
	}
	n = len(lines)
	lines.warnIf(!g.OtherNode.IsZero() && s.Now.Sub(g.OtherNode) >= OtherNodeAfter, "node %q: a client with another cluster, locality or metadata is connected beside one with the same node id%s, and gets its configuration: give each an id of its own", g.NodeID, lasting(s.Now, g.OtherNode))
	lines.since(n, g.OtherNode)
	lines.addIf(g.ShortLives > 0, "node %q: Envoy disconnected %d times in a row within a minute of its start: look at its log, it may be crashing", g.NodeID, g.ShortLives)
	for _, d := range g.Dangling[:min(maxMissing, len(g.Dangling))] {
		n := len(lines)
		lines.add("%s %s leads to the cluster %s, which the control plane did not send%s: requests to it get 503, unless Envoy's bootstrap has it; `holdfast explain%s %s` shows more",
			d.Type, d.Name, d.Cluster, lasting(s.Now, d.Since), s.at(), quoted(d.Type+"/"+d.Name))
		lines.since(n, d.Since)
	}
	lines.addIf(g.DanglingTotal > maxMissing, "… and %d more clusters that are not there", g.DanglingTotal-maxMissing)
	for _, t := range g.Types {
		dump := fmt.Sprintf("`holdfast dump%s --type %s` shows", s.at(), t.Type)
		nacked, suspect := t.Resources[xds.Nacked.String()], t.Resources[xds.Suspect.String()]
		n := len(lines)
		lines.warnIf(t.Withheld > 0, "%s: %s: clients keep what they have until it confirms that, for which it %s asked %s; %s what (removal_held_back); `holdfast resume%s --removals` confirms it at once",
			t.Type, t.HeldBack(), was(s.Now, t.WithheldUntil), in(s.Now, t.WithheldUntil), dump, s.at())
		lines.since(n, t.WithheldSince)
		lines.warnIf(t.ChangesWithheld > 0, "%s: %s held back, because of clusters to which they led and whose removal is held back; both take effect together; %s which (change_held_back), and `holdfast diff%s %s/NAME served held` what changes",
			t.Type, plural(t.ChangesWithheld, "change"), dump, s.at(), t.Type)
		n = len(lines)
		lines.warnIf(t.Errors > 0, "%s: control plane did not provide %s%s%s: %s; %s the errors",
			t.Type, plural(t.Errors, "requested resource"), t.errorNames(), lasting(s.Now, t.ErrorsSince), t.ErrorReason, dump)
		lines.since(n, t.ErrorsSince)
		n = len(lines)
		lasts := lasting(s.Now, t.NotAccepted) + t.notAccepted()
		meanwhile := t.meanwhile(nacked + suspect)
		lines.addIf(nacked > 0, "%s: %s NACKed by clients of node %q%s. %s; %s why; `holdfast resume%s --rejected` offers them again at once",
			t.Type, plural(nacked, "resource"), g.NodeID, lasts, meanwhile, dump, s.at())
		lines.warnIf(suspect > 0, "%s: a response was NACKed by clients of node %q%s, and %s may be the cause. %s; %s why; `holdfast resume%s --rejected` offers them again at once",
			t.Type, g.NodeID, lasts, plural(suspect, "resource"), meanwhile, dump, s.at())
		lines.since(n, t.NotAccepted)
	}
	return lines
}

// noEnvoy is from when on it is a problem that no Envoy is connected: one that is restarted is back before.
const noEnvoy = time.Minute

// notAccepted says which contents are rejected or suspect and, in the client's words, why the first is; "" if it is not known.
func (t Type) notAccepted() string {
	if t.NotAcceptedReason == "" {
		return ""
	}
	more := ""
	if t.Resources[xds.Nacked.String()]+t.Resources[xds.Suspect.String()] > len(t.NotAcceptedNames) {
		more = ", …"
	}
	return fmt.Sprintf(" (%s%s): %s", strings.Join(t.NotAcceptedNames, ", "), more, shortened(t.NotAcceptedReason))
}

// meanwhile says what clients get in place of those that are not accepted, of which there are n.
func (t Type) meanwhile(n int) string {
	switch t.NotAcceptedNew {
	case 0:
		return "Meanwhile clients get what they accepted before"
	case n:
		return "Clients accepted none before, and get none"
	}
	return fmt.Sprintf("Meanwhile clients get what they accepted before, and nothing of %d that are new", t.NotAcceptedNew)
}

// maxShown bounds the bytes of a client's words in one line.
const maxShown = 300

func shortened(text string) string {
	if len(text) <= maxShown {
		return text
	}
	return strings.ToValidUTF8(text[:maxShown], "") + "…"
}

// noAnswer is from when on it is a problem that a client does not answer: longer than Envoy waits for what is missing (15 s).
const noAnswer = 20 * time.Second

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
		lines.addIf(s.Error != "", "state on disk%s: %s", lasting(now, s.Since), s.Error)
	}
	lines.since(0, s.Since)
	lines.warnIf(s.Damage != "", "state on disk: it was damaged when the agent started; the readable part is served until a control plane changes it: %s", s.Damage)
	for _, name := range s.Aside {
		lines.warnIf(true, "state on disk: %s was set aside and is not used: delete it, or stop holdfast and rename it back", name)
	}
	return lines
}

// notRead is from when on it is a problem that standard error takes nothing.
const notRead = 5 * time.Second

// problems lists the problems with the log; o may be nil.
func (o *Output) problems(now time.Time) (lines problems) {
	if o == nil || o.Stuck.IsZero() || now.Sub(o.Stuck) < notRead {
		return nil
	}
	why := "nobody reads it: look at what collects the log"
	if o.Error != "" {
		why = o.Error
	}
	var lost uint64
	for _, n := range o.Dropped {
		lost += n
	}
	lines.warnIf(true, "the log cannot be written to standard error, for %s: %s; %s lost until now", age(now, o.Stuck), why, plural(int(lost), "line"))
	lines.since(0, o.Stuck)
	return lines
}

// certificateProblems lists the problems with certificates; s may be nil.
func certificateProblems(s *sds.Status, now time.Time) (lines problems) {
	if s == nil {
		return nil
	}
	for _, id := range s.Identities {
		attempts := plural(id.Attempts, "attempt")
		lines.addIf(now.Before(id.NotBefore), "certificate %s: valid only %s: peers reject it until then; a new one is requested. Is a clock wrong?", id.Secret, in(now, id.NotBefore))
		switch valid := now.Before(id.NotAfter); {
		case id.Error == "" && (id.Serial == "" || valid):
		case id.Serial == "":
			lines.add("certificate %s: none yet from %s, %s: %s", id.Secret, id.CA, attempts, id.Error)
		case valid:
			lines.warnIf(true, "certificate %s: not renewed after %s; the one in use expires %s: %s", id.Secret, attempts, in(now, id.NotAfter), id.Error)
		default:
			line := fmt.Sprintf("certificate %s: expired %s, and is still served; %s since: %s", id.Secret, ago(now, id.NotAfter), attempts, id.Error)
			lines.add("%s", strings.TrimSuffix(line, ": "))
		}
	}
	for _, fault := range s.Faults {
		lines.warnIf(true, "certificates: %s (the current certificates stay in use)", fault)
	}
	for _, f := range s.Files {
		lines.addIf(f.Error != "", "secret %s: %s", f.Name, f.Error)
	}
	return lines
}

// quoted returns a text as one word of a shell; with control characters, of bash.
func quoted(s string) string {
	if strings.ContainsFunc(s, unicode.IsControl) {
		inside := strconv.QuoteToASCII(s)
		return "$'" + strings.NewReplacer(`\"`, `"`, `'`, `\'`).Replace(inside[1:len(inside)-1]) + "'"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r > '~' || r <= ' ' || strings.ContainsRune("|&;<>()$`\\\"'*?[]{}~#!", r) }) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
