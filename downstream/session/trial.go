package session

import (
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// trial is under way after a SotW client NACKed several new contents of a complete set together,
// and its reason names some of them. Nothing of such a set can be sent alone (design.md I7), but
// the set can be sent without what is named: with what the client had before in its place, or
// nothing. If the client ACKs that, the others are good and the named are not. The reason is
// free text and no more than a hint, so that nothing is rejected because of it alone.
type trial struct {
	// number is that of the newest response when the trial began: the answer to a later one
	// decides.
	number uint64
	// named are the contents that the set is sent without, others those that were NACKed with
	// them.
	named, others []*xds.Resource
	reason        string // without secrets
}

// maxHint bounds how much of a reason is searched for names.
const maxHint = 4 << 10

// try begins a trial of contents that were NACKed together, if the client's reason names some of
// them, but not all.
func (sub *subscription) try(blamed []*xds.Resource, said, reason string) {
	if sub.sendsAlone() || sub.trial != nil {
		return
	}
	named, others := sub.named(said, blamed)
	if len(named) == 0 || len(others) == 0 {
		return
	}
	for _, r := range named {
		sub.revert(r)
	}
	sub.trial = &trial{number: sub.sentCount, named: named, others: others, reason: reason}
	sub.answerDue = true
}

// named divides contents into those that a reason names and the others. Envoy lists what it did
// not take as "listener(s) NAME: why", one in each line, and "cluster(s) NAME: why, NAME: why". A
// name in such a place is meant. Elsewhere it may be a word of the sentence, and counts only for
// what the client has something to go back to.
func (sub *subscription) named(said string, blamed []*xds.Resource) (named, others []*xds.Resource) {
	said = said[:min(len(said), maxHint)]
	listed := make(map[*xds.Resource]bool, len(blamed))
	some := false
	for _, r := range blamed {
		if isWord, isListed := findName(said, r.Name); isWord {
			listed[r] = isListed
			some = some || isListed
		}
	}
	for _, r := range blamed {
		isListed, isWord := listed[r]
		h := sub.sent[r.Name]
		hadBefore := h != nil && h.acked != nil
		switch {
		case !isWord || h == nil || h.version() != r.Version: // not meant, or something newer was sent
			others = append(others, r)
		case isListed && (hadBefore || !sub.inherited), !some && hadBefore:
			named = append(named, r)
		default:
			others = append(others, r)
		}
	}
	return named, others
}

// findName reports whether a name occurs in a text as a whole word, and whether in a place where
// Envoy lists what it did not take.
func findName(text, name string) (isWord, isListed bool) {
	if name == "" {
		return false, false
	}
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return isWord, isListed
		}
		before, after := text[:from+at], text[from+at+len(name):]
		from += at + 1
		if before != "" && partOfName(before[len(before)-1]) || after != "" && partOfName(after[0]) {
			continue
		}
		isWord = true
		begins := before == "" || slices.ContainsFunc([]string{"(s) ", "\n", ", "}, func(end string) bool { return strings.HasSuffix(before, end) })
		isListed = isListed || begins && strings.HasPrefix(after, ": ")
	}
}

// partOfName reports whether a character next to a name makes another name of it.
func partOfName(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80 || strings.IndexByte("_-./|", c) >= 0
}

// passed takes in that the client ACKed a response: if it decides a trial, and the others are
// accepted, the only content that it was sent without is to blame.
func (sub *subscription) passed(f *sentResponse) (culprit *Answer) {
	tr := sub.trial
	if tr == nil || f.number <= tr.number {
		return nil
	}
	sub.trial = nil
	accepted := func(r *xds.Resource) bool { return sub.sent[r.Name].hasAcked(r.Version) }
	switch {
	case !slices.ContainsFunc(tr.others, func(r *xds.Resource) bool { return !accepted(r) }):
		if len(tr.named) == 1 {
			return &Answer{Type: sub.url, NACK: true, Error: tr.reason, Nacked: tr.named[0]}
		}
	default: // some changed meanwhile, and may have been to blame
		for _, r := range tr.named {
			sub.sent[r.Name].pardon(r.Version)
		}
	}
	return nil
}

// failed takes in that the client NACKed a response, and reports whether that decides a trial:
// the hint was wrong, and everything is as if it had not been given.
func (sub *subscription) failed(f *sentResponse) bool {
	tr := sub.trial
	if tr == nil || f.number <= tr.number {
		return false
	}
	sub.trial = nil
	for _, r := range tr.named {
		if h := sub.sent[r.Name]; h != nil {
			h.pardon(r.Version)
			sub.pardoned = append(sub.pardoned, r)
		}
	}
	return true
}

// putBack makes contents of a failed trial what was sent last under their names, as before it:
// they are suspects, to be sent again with the next change. What changed since is left alone.
func (sub *subscription) putBack(v View) {
	for _, r := range sub.pardoned {
		h, item := sub.sent[r.Name], v.Lookup(sub.url, r.Name)
		if h == nil || item.Current == nil || item.Current.Version != r.Version {
			continue
		}
		if h.last != nil {
			sub.served.Remove(h.last)
		}
		sub.served.Add(r)
		h.last, h.has = r, &r.Version
	}
	sub.pardoned = nil
}
