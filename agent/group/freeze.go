package group

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Freeze serves what is served now until Resume; see cache.Freeze.
func (g *Group) Freeze(o cache.Freeze) error {
	err := g.cache.Freeze(o)
	if err == nil {
		g.cfg.Log.Warn("frozen: what the control plane changes is not served", "reason", o.Reason, "by", o.By)
	}
	return err
}

// RollBack serves an earlier configuration, and freezes it. If something is missing, and in does not
// accept that, nothing changes, and the result is not Done.
func (g *Group) RollBack(in cache.Rollback) (admin.Rollback, error) {
	in.Missing = missing
	did, err := g.cache.RollBack(in)
	out := admin.Rollback{Node: g.Node().GetId(), To: did.To, Changes: []admin.RolledBack{}, Done: err == nil && !in.DryRun}
	for _, ch := range did.Changes {
		out.Changes = append(out.Changes, admin.RolledBack{Type: xds.Short(ch.Type), Name: ch.Name, From: ch.From, To: ch.To})
	}
	for _, m := range did.Missing {
		out.Missing = append(out.Missing, admin.NotRestored{Type: xds.Short(m.Type), Name: m.Name, Why: m.Why})
	}
	if out.Done {
		g.cfg.Log.Warn("rolled back and frozen: what the control plane changes is not served",
			"to", did.To.UTC().Format(time.RFC3339Nano), "changes", len(out.Changes), "missing", len(out.Missing), "reason", in.Freeze.Reason, "by", in.Freeze.By)
	}
	if errors.Is(err, cache.ErrMissing) {
		err = nil
	}
	return out, err
}

// Resume ends a freeze and a fallback, and reports whether there was one.
func (g *Group) Resume() bool {
	unfrozen := g.cache.Unfreeze()
	if unfrozen {
		g.cfg.Log.Warn("freeze ended: the newest configuration is served")
	}
	return g.cache.Resume() || unfrozen
}

// OfferAgain offers to the clients again what they rejected, and returns it. meant reports of a name whether it is; dryRun changes nothing.
func (g *Group) OfferAgain(meant func(xds.Key) bool, dryRun bool) (out []admin.Offer) {
	names := g.cache.OfferAgain(meant, dryRun)
	reasons := make(map[xds.Key]string)
	for i, k := range names {
		if i > 0 && names[i-1].Type == k.Type { // they are in push order
			continue
		}
		for _, r := range g.cache.Resources(k.Type) {
			reasons[xds.Key{Type: k.Type, Name: r.Name}] = r.Reason
		}
	}
	for _, k := range names {
		out = append(out, admin.Offer{Node: g.Node().GetId(), Type: xds.Short(k.Type), Name: k.Name, Reason: reasons[k]})
	}
	if !dryRun && len(names) > 0 {
		g.cfg.Log.Info("what clients rejected is offered to them again: `holdfast resume --rejected`", "resources", len(names))
	}
	return out
}

// missing returns what contents refer to and would not be there, or is a certificate that has ended.
func missing(contents []*xds.Resource, served func(xds.Key) *xds.Resource, had func(xds.Key) bool) (out []cache.MissingContent) {
	seen := make(map[xds.Key]bool)
	for _, r := range contents {
		for _, ref := range references.Of(r.Body) {
			k := xds.Key{Type: ref.Type, Name: ref.Name}
			if ref.Name == "" || ref.HasDefault || ref.Type == xds.EndpointType || seen[k] {
				continue
			}
			seen[k] = true
			by := xds.Short(r.Type) + "/" + r.Name
			switch target := served(k); {
			case target == nil && (ref.Type == xds.ClusterType || ref.Type == xds.ListenerType) && !had(k):
				// It may be one of Envoy's bootstrap.
			case target == nil:
				out = append(out, cache.MissingContent{Key: k, Why: by + " refers to it, and it would not be served"})
			case ref.Type == xds.SecretType:
				if end := admin.CertificateEnd(target.Body); !end.IsZero() && end.Before(time.Now()) {
					out = append(out, cache.MissingContent{Key: k, Why: fmt.Sprintf("%s refers to it, and its certificate ended at %s", by, end.UTC().Format(time.RFC3339))})
				}
			}
		}
	}
	return out
}

// Frozen returns what is frozen, for the status; nil for nothing.
func (g *Group) Frozen() *admin.Freeze {
	o, waiting := g.cache.Frozen()
	if o == nil {
		return nil
	}
	out := &admin.Freeze{
		Since: o.Since, By: o.By, Reason: o.Reason, All: o.All, Until: o.Until, ACK: o.ACK, RolledBack: o.RolledBack, RolledBackTo: o.RolledBackTo,
		Waiting: make(map[string]int, len(waiting)),
	}
	for _, typeURL := range o.Types {
		out.Types = append(out.Types, xds.Short(typeURL))
	}
	for _, k := range o.Names {
		out.Names = append(out.Names, xds.Short(k.Type)+"/"+k.Name)
	}
	for typeURL, n := range waiting {
		out.Waiting[xds.Short(typeURL)] = n
	}
	return out
}
