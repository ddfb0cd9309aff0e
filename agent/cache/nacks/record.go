package nacks

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// record is what is known of a content that clients NACKed.
type record struct {
	version, reason string
	at              time.Time // when it was last NACKed
	// together says that it was NACKed with others, and that it is not known which of them is to blame: it is a suspect.
	together bool
	// refusers are the clients that NACKed it and are still there. accepted says that another client has accepted it.
	refusers map[*subscriptions.Client]struct{}
	accepted bool
	// offers counts how often it was offered again. pause is how long it is not without a cause. offeredAt is since when it is; the zero
	// time for not.
	offers    int
	pause     time.Duration
	offeredAt time.Time
	// judges are the clients that have not answered to the offer. refused is the last reason of those that have NACKed it; "" for none.
	judges  map[*subscriptions.Client]struct{}
	refused string
	// killed says that a client that was sent the last offer went without an answer: it may have ended because of it.
	killed state.Killed
	// due is when it is offered again; the zero time for not.
	due time.Time
	// looked says that refers and conflicts are known: what it refers to, and the addresses and keys that no other resource of its type
	// may have.
	looked    bool
	refers    map[xds.Key]struct{}
	conflicts []string
	// causes counts how often each name was a cause.
	causes map[xds.Key]int
}

// maxCauses bounds the causes of one record that are counted, and maxLooked the suspects of a type whose references are looked for: the
// others are offered with them.
const (
	maxCauses = 64
	maxLooked = 64
)

// look finds out what a record's content refers to, unless that is known.
func (n *Nacks) look(r *record, content *xds.Resource) {
	if r.looked {
		return
	}
	r.looked, r.refers, r.conflicts = true, make(map[xds.Key]struct{}), xds.ConflictKeys(content)
	if n.cfg.References != nil {
		for _, of := range n.cfg.References(content) {
			r.refers[of] = struct{}{}
		}
	}
}

// reason makes a name due under its pause, if it is not already.
func (n *Nacks) reason(r *record) {
	if r.due.IsZero() && r.offeredAt.IsZero() {
		r.due = r.at.Add(r.pause)
		n.s.Wake()
	}
}

// cause makes a name due because of another: at once, and the more seldom the more often that is so.
func (n *Nacks) cause(k xds.Key, r *record, of xds.Key, now time.Time) {
	if r.causes == nil || len(r.causes) == maxCauses {
		r.causes = make(map[xds.Key]int)
	}
	if r.killed.Any() && r.causes[of] > 0 {
		return // it was a cause before a client ended: what that reveals is known
	}
	due := now
	if times := r.causes[of]; times > 0 {
		due = wake.Latest(now, r.at.Add(min(MinPause<<min(times-1, 12), MaxPause)))
	}
	r.causes[of]++
	r.pause, r.killed = MinPause, state.Killed{}
	if r.due.IsZero() || due.Before(r.due) {
		r.due = due
	}
	n.persist(k)
	n.s.Wake()
}

// newRecord returns the record of a content that is NACKed for the first time.
func newRecord(content *xds.Resource, reason string, now time.Time) *record {
	return &record{version: content.Version, reason: reason, at: now, pause: MinPause, refusers: make(map[*subscriptions.Client]struct{})}
}

// maxFormer bounds the contents of a name whose records are kept.
const maxFormer = 8

// keep keeps the record of a name's content that is not the newest any more.
func (n *Nacks) keep(k xds.Key, r *record) {
	former := append(n.former[k], r)
	if len(former) > maxFormer {
		former = former[1:]
	}
	n.former[k] = former
}

// take takes back the record of a content that is the newest again; nil for none.
func (n *Nacks) take(k xds.Key, version string) *record {
	former := n.former[k]
	i := slices.IndexFunc(former, func(r *record) bool { return r.version == version })
	if i < 0 {
		return nil
	}
	r := former[i]
	if former = slices.Delete(former, i, i+1); len(former) == 0 {
		delete(n.former, k)
	} else {
		n.former[k] = former
	}
	return r
}

// persist records that what is on disk of a name may differ.
func (n *Nacks) persist(k xds.Key) {
	if k.Type != xds.SecretType { // the content hash of a password tells whoever guesses it that he guessed right
		n.s.PersistFact(state.RejectedFact, k)
	}
}
