package group

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// History returns the histories that a filter selects, in push order of the types and then by name. A name
// that is asked for by type and name is there also if it never changed.
func (g *Group) History(f admin.HistoryFilter) (all []admin.NameHistory) {
	node := g.Node().GetId()
	if f.Node != "" && f.Node != node {
		return nil
	}
	names := g.cache.Changed(f.Since)
	if asked := (xds.Key{Type: f.Type, Name: f.Name}); f.Type != "" && f.Name != "" && f.Since.IsZero() && !slices.Contains(names, asked) {
		names = append(names, asked)
	}
	for _, k := range names {
		if f.Type != "" && k.Type != f.Type || f.Name != "" && k.Name != f.Name {
			continue
		}
		versions, began := g.cache.Versions(k.Type, k.Name)
		now := g.cache.Contents(k.Type, k.Name)
		if len(versions) == 0 && now.Tries == nil {
			continue
		}
		h := admin.NameHistory{Node: node, Type: xds.Short(k.Type), Name: k.Name, Began: began, Versions: []admin.Version{}}
		if t := now.Tries; t != nil && now.Held != nil {
			h.Rejected = &admin.Rejected{Version: now.Held.Version, Reason: t.Reason, Tries: *triesOf(t)}
		}
		for _, v := range versions {
			out := admin.Version{From: v.From, Until: v.Until, Version: v.Version, Kept: v.Resource != nil}
			if r := v.Resource; r != nil {
				out.Size = len(r.Body.GetValue())
				if r.UpstreamVersion != xds.OfResponse {
					out.UpstreamVersion = r.UpstreamVersion
				}
			}
			h.Versions = append(h.Versions, out)
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b admin.NameHistory) int {
		return cmp.Or(xds.CompareShort(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// errNoHistory explains why a former content is not known.
var errNoHistory = errors.New("is not known, or not kept (10 versions of a name, those that lasted longest, and --history-bytes in all): `holdfast history` shows what is")

// Content returns a content of a name: one of admin.Contents but "stored", a time or a version; nil for none.
func (g *Group) Content(k xds.Key, which string) (r *xds.Resource, err error) {
	now := g.cache.Contents(k.Type, k.Name)
	switch which {
	case "", "served":
		return now.Served, nil
	case "held":
		return now.Held, nil
	case "upstream":
		if !g.Connected() {
			return nil, errors.New("no control plane is connected: `held` is what one sent last")
		}
		return now.Held, nil
	case "accepted":
		return now.Accepted, nil
	case "stable":
		return now.Stable, nil
	}
	versions, began := g.cache.Versions(k.Type, k.Name)
	if which == "previous" {
		if len(versions) < 2 {
			return nil, errors.New("clients accepted nothing else" + since(began))
		}
		v := versions[len(versions)-2]
		if v.Resource == nil && !v.Absent() {
			return nil, fmt.Errorf("version %s of %s/%s %w", v.Version, xds.Short(k.Type), k.Name, errNoHistory)
		}
		return v.Resource, nil
	}
	if at, err := admin.ParseTime(which, time.Now()); err == nil {
		r, known := g.cache.At(k.Type, k.Name, at)
		if !known {
			return nil, fmt.Errorf("what %s/%s was at %s %w", xds.Short(k.Type), k.Name, at.UTC().Format(time.RFC3339), errNoHistory)
		}
		return r, nil
	}
	for _, r := range []*xds.Resource{now.Served, now.Held, now.Accepted, now.Stable} {
		if r != nil && r.Version == which {
			return r, nil
		}
	}
	for _, v := range slices.Backward(versions) {
		if v.Version == which && v.Resource != nil {
			return v.Resource, nil
		}
	}
	return nil, fmt.Errorf("%q is neither one of %s, nor a time, nor a version of %s/%s that is kept",
		which, strings.Join(admin.Contents, ", "), xds.Short(k.Type), k.Name)
}

func since(began time.Time) string {
	if began.IsZero() {
		return ""
	}
	return " since " + began.UTC().Format(time.RFC3339)
}

// HasAny reports whether something is known of one of the names, now or at an earlier time; with no names,
// whether anything is.
func (g *Group) HasAny(names []xds.Key) bool {
	return len(names) == 0 || slices.ContainsFunc(names, func(k xds.Key) bool {
		versions, _ := g.cache.Versions(k.Type, k.Name)
		return len(versions) > 0 || g.cache.Contents(k.Type, k.Name) != (cache.Contents{})
	})
}
