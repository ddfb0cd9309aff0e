package session

import "github.com/holdfast-xds/holdfast/internal/xds"

// maxParents bounds the resources of one response in which references are looked for: of more, everything that may follow them is sent again.
const maxParents = 64

// follow schedules what resources refer to that are sent to the client, new or changed, to be sent again, if the client has it (protocol.md V16).
func (s *Session) follow(parents []*xds.Resource) {
	var subs []*subscription // that may follow
	for _, sub := range s.ordered {
		if xds.Info(sub.url).Follows && sub.names.len() > 0 {
			subs = append(subs, sub)
		}
	}
	if len(parents) == 0 || len(subs) == 0 || s.cfg.References == nil {
		return
	}
	if len(parents) > maxParents {
		for _, sub := range subs {
			for name := range sub.names.all() {
				sub.resend(name)
			}
		}
		return
	}
	for seen := make(map[*xds.Resource]bool); len(parents) > 0; parents = parents[1:] {
		if seen[parents[0]] {
			continue
		}
		seen[parents[0]] = true
		for _, k := range s.cfg.References(parents[0]) {
			if sub := s.types[k.Type]; sub != nil && xds.Info(k.Type).Follows && sub.subscribes(k.Name) {
				if r := sub.resend(k.Name); r != nil && xds.Info(k.Type).Parent {
					parents = append(parents, r) // Envoy makes a filter anew from it
				}
			}
		}
	}
}

// resend schedules a name to be sent again, if the client was sent it, and returns what that was; nil for nothing.
func (sub *subscription) resend(name string) *xds.Resource {
	h := sub.sent.get(name)
	if h == nil {
		return nil
	}
	sub.answerName(name)
	return h.last
}
