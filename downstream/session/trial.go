package session

import (
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// trial is in progress after a SotW client NACKed several new resources of a complete set
// together, and the reason of the NACK names some of them. No resource of such a set can be sent
// alone (design.md I7), but the set can be sent without the named ones: each is replaced by the
// version that the client had before, or left out. If the client ACKs that set, the named ones were
// to blame. The reason is free text and no more than a hint, so that no resource counts as NACKed
// because of the reason alone.
type trial struct {
	number        uint64          // the ACK or NACK of a later response decides the trial
	named, others []*xds.Resource // the NACKed resources that the set is sent without, and the others
	reason        string          // with secrets removed
}

// names reports whether a set is tried without a resource; tr is nil for no trial.
func (tr *trial) names(name string) bool {
	return tr != nil && slices.ContainsFunc(tr.named, func(r *xds.Resource) bool { return r.Name == name })
}

// maxHint bounds how many bytes of a reason are searched for names.
const maxHint = 4 << 10

// try begins a trial for resources that were NACKed together, if the client's reason names some
// of them, but not all.
func (sub *subscription) try(blamed []*xds.Resource, text, reason string) {
	if sub.sendsAlone() || sub.trial != nil {
		return
	}
	named, others := sub.named(text, blamed)
	if len(named) == 0 || len(others) == 0 {
		return
	}
	for _, r := range named {
		sub.revert(r)
	}
	sub.trial = &trial{number: sub.sentCount, named: named, others: others, reason: reason}
	sub.mustRespond = true
}

// named splits resources into those that a reason names and the others. Envoy lists the resources
// that it did not accept as "listener(s) NAME: why", one on each line, or as "cluster(s) NAME:
// why, NAME: why". A name at such a place counts as named. Elsewhere it may be an ordinary word
// of the sentence, and counts only if the client has a previous version to go back to.
func (sub *subscription) named(text string, blamed []*xds.Resource) (named, others []*xds.Resource) {
	text = text[:min(len(text), maxHint)]
	listed := make(map[*xds.Resource]bool, len(blamed))
	anyListed := false
	for _, r := range blamed {
		if isWord, isListed := findName(text, r.Name); isWord {
			listed[r] = isListed
			anyListed = anyListed || isListed
		}
	}
	for _, r := range blamed {
		isListed, isWord := listed[r]
		h := sub.sent.get(r.Name)
		superseded := h == nil || h.version() != r.Version
		hadBefore := h != nil && h.acked != nil
		if isWord && !superseded && (isListed && (hadBefore || !sub.inherited) || !anyListed && hadBefore) {
			named = append(named, r)
		} else {
			others = append(others, r)
		}
	}
	return named, others
}

// findName reports whether a name occurs in a text as a whole word, and whether it does so where
// Envoy lists a resource that it did not accept.
func findName(text, name string) (isWord, isListed bool) {
	if name == "" {
		return false, false
	}
	for start := 0; ; {
		at := strings.Index(text[start:], name)
		if at < 0 {
			return isWord, isListed
		}
		before, after := text[:start+at], text[start+at+len(name):]
		start += at + 1
		if before != "" && partOfName(before[len(before)-1]) || after != "" && partOfName(after[0]) {
			continue
		}
		isWord = true
		begins := before == "" || slices.ContainsFunc([]string{"(s) ", "\n", ", "}, func(end string) bool { return strings.HasSuffix(before, end) })
		isListed = isListed || begins && strings.HasPrefix(after, ": ")
	}
}

// partOfName reports whether a character beside a name makes it part of a longer name.
func partOfName(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80 || strings.IndexByte("_-./|", c) >= 0
}

// passed records that the client ACKed a response. If that decides a trial, and the client has
// accepted all the others, then a single resource that the set was sent without is the culprit.
func (sub *subscription) passed(f *sentResponse) (culprit *Answer) {
	tr := sub.trial
	if tr == nil || f.number <= tr.number {
		return nil
	}
	sub.trial = nil
	changed := func(r *xds.Resource) bool { return !sub.sent.get(r.Name).hasAcked(r.Version) }
	switch {
	case slices.ContainsFunc(tr.others, changed): // those may have been to blame
		for _, r := range tr.named {
			sub.sent.get(r.Name).forgetNack(r.Version)
		}
	case len(tr.named) == 1:
		return &Answer{Type: sub.url, NACK: true, Error: tr.reason, Nacked: tr.named[0]}
	}
	return nil
}

// failed records that the client NACKed a response, and reports whether that answers a trial. If
// it does, the hint was wrong, and the state before the trial is restored; unless the reason names what took the place of what it named
// before, as of an Envoy that can read neither the newest content nor the one that another build accepted: then the set is sent without
// both.
func (sub *subscription) failed(f *sentResponse, text string) bool {
	tr := sub.trial
	if tr == nil || f.number <= tr.number {
		return false
	}
	if replaced := sub.replaced(f, text[:min(len(text), maxHint)]); len(replaced) > 0 {
		for _, r := range replaced {
			sub.revert(r)
			tr.named = slices.DeleteFunc(tr.named, func(named *xds.Resource) bool { return named.Name == r.Name })
		}
		tr.number, tr.named = sub.sentCount, append(tr.named, replaced...)
		sub.mustRespond = true
		return true
	}
	sub.trial = nil
	for _, r := range tr.named {
		if h := sub.sent.get(r.Name); h != nil {
			h.forgetNack(r.Version)
			sub.restored = append(sub.restored, r)
		}
	}
	return true
}

// replaced returns what a response had in the place of what a trial sends the set without, if a reason names it.
func (sub *subscription) replaced(f *sentResponse, text string) (replaced []*xds.Resource) {
	for _, named := range sub.trial.named {
		for _, r := range f.resources {
			if r.Name == named.Name && r.Version != named.Version && !sub.sent.get(r.Name).hasAcked(r.Version) {
				if isWord, _ := findName(text, r.Name); isWord {
					replaced = append(replaced, r)
				}
			}
		}
	}
	return replaced
}

// putBack makes each resource of a failed trial again the version that was sent last under its
// name, as it was before the trial: they are suspects, and are sent again with the next change.
// Resources that changed since are left alone.
func (sub *subscription) putBack(v View) {
	for _, r := range sub.restored {
		h, item := sub.sent.get(r.Name), v.Lookup(sub.url, r.Name)
		if h == nil || item.Current == nil || item.Current.Version != r.Version {
			continue
		}
		if h.last != nil {
			sub.sentVersion.Remove(h.last)
		}
		sub.sentVersion.Add(r)
		h.last, h.has = r, &r.Version
	}
	sub.restored = nil
}
