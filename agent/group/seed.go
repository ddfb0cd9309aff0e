package group

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/seed"
	"github.com/holdfast-xds/holdfast/internal/wake"
)

// After a seed could not be used, the pause before the next attempt doubles between these limits.
const (
	minSeedPause = time.Second
	maxSeedPause = 30 * time.Second
)

// seeding is the state of a group's seed.
type seeding struct {
	used  *seed.Seed // what is served until a source answers; nil for nothing
	since time.Time
	n     int   // the resources that were taken from it
	err   error // why the last one could not be used
}

// serveSeed serves a seed whenever every source has failed and nothing is known of listeners and clusters: neither
// from a source nor from disk.
func (g *Group) serveSeed(ctx context.Context) error {
	if g.cfg.Seed == nil {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.withoutSource:
		}
		for pause := minSeedPause; !g.Connected() && g.cache.Unconfigured(); pause = min(2*pause, maxSeedPause) {
			s, err := g.cfg.Seed(ctx)
			if err == nil {
				err = g.tooStale(s)
			}
			if err == nil {
				g.useSeed(s)
				break
			}
			g.seedFailed(err)
			if !wake.Sleep(ctx, pause) {
				return nil
			}
		}
	}
}

// tooStale returns an error if new clients would not be served a seed, because of MaxStale.
func (g *Group) tooStale(s *seed.Seed) error {
	if age := time.Since(s.At); g.cfg.MaxStale > 0 && age > g.cfg.MaxStale {
		return fmt.Errorf("the seed is from %s, %s ago, longer than --max-stale %s", s.At.UTC().Format(time.RFC3339), age.Round(time.Second), g.cfg.MaxStale)
	}
	return nil
}

func (g *Group) seedFailed(err error) {
	g.mu.Lock()
	before := g.seeding.err
	g.seeding.err = err
	g.mu.Unlock()
	if before == nil || before.Error() != err.Error() { // once
		g.cfg.Log.Warn("no control plane answers, nothing is stored, and the seed cannot be used", "err", err)
	}
}

// useSeed serves a seed until a source answers.
func (g *Group) useSeed(s *seed.Seed) {
	g.mu.Lock()
	if g.connected {
		g.mu.Unlock()
		return
	}
	if g.contact.IsZero() {
		g.contact = s.At
	}
	g.mu.Unlock()
	n := g.cache.RestoreSeed(s.Resources, s.Types)
	g.mu.Lock()
	g.seeding = seeding{used: s, since: time.Now(), n: n}
	if g.connected { // meanwhile
		g.seeding.used = nil
	}
	g.mu.Unlock()
	g.cfg.Log.Warn("no control plane answers, and nothing is stored: a seed is served",
		"role", s.Role, "at", s.At.UTC().Format(time.RFC3339), "resources", n, "signed_by", s.SignedBy)
}

// seedStatus returns the state of the seed; nil if none is used or was looked for.
func (g *Group) seedStatus() *admin.Seed {
	g.mu.Lock()
	defer g.mu.Unlock()
	state := g.seeding
	switch {
	case state.used != nil:
		return &admin.Seed{
			Used: true, Role: state.used.Role, At: state.used.At, Since: state.since, Resources: state.n, SignedBy: state.used.SignedBy,
		}
	case state.err != nil:
		return &admin.Seed{Error: state.err.Error()}
	}
	return nil
}
