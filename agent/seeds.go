package agent

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/seed"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// SeedConfig configures the seeds of an Agent (package seed).
type SeedConfig struct {
	// Role names the Envoys that have the same configuration as those of this agent. Without it, it is the cluster
	// of the node.
	Role string
	// Source is read if every upstream fails and nothing is stored; nil for none.
	Source *seed.Source
	// Publish is where the agent publishes seeds; nil for nowhere. A seed there is replaced when it is older than
	// Every; 0 means seed.DefaultPublishEvery. Key signs them if it is not nil.
	Publish seed.Place
	Every   time.Duration
	Key     ed25519.PrivateKey
}

// role returns the role of a node's Envoys; "" if it is not known.
func (c SeedConfig) role(node *corev3.Node) string { return cmp.Or(c.Role, node.GetCluster()) }

var _ admin.Seeds = (*Agent)(nil)

// seedFor returns what reads the seed of a node's group; nil if there is none. Seeds are for Envoys.
func (a *Agent) seedFor(node *corev3.Node) func(context.Context) (*seed.Seed, error) {
	if a.cfg.Seed.Source == nil || node.GetUserAgentName() != xds.EnvoyUserAgent {
		return nil
	}
	role := a.cfg.Seed.role(node)
	return func(ctx context.Context) (*seed.Seed, error) { return a.cfg.Seed.Source.Read(ctx, role) }
}

// The reasons why a resource is not in a seed, beside those of store.NotStorable.
const (
	notAccepted = "no client has accepted it yet"
	ttlEnded    = "its TTL has ended"
)

// notYet says why there is nothing to make a seed of yet.
type notYet string

func (e notYet) Error() string { return string(e) }

// makeSeed makes a seed of what should be on disk for a group.
func makeSeed(role string, at time.Time, saved []cache.Saved, facts map[cache.Fact]string) (*seed.Seed, error) {
	switch {
	case role == "":
		return nil, errors.New("the role is not known: give --seed-role, or a node with a cluster")
	case at.IsZero():
		return nil, notYet("no control plane has ever answered")
	}
	s := &seed.Seed{Role: role, At: at.UTC().Truncate(time.Second), LeftOut: make(map[string]int)}
	there, accepted := make(map[string]bool), make(map[string]bool) // by type
	var finder redact.Finder
	now := time.Now()
	for _, in := range saved {
		r := in.Content
		if r == nil || r.Body == nil {
			continue // it was removed, or it is an alias of nothing
		}
		if !in.Accepted {
			r = in.Previous
		}
		there[in.Type], accepted[in.Type] = true, accepted[in.Type] || r != nil
		why := ""
		switch {
		case r == nil:
			why = notAccepted
		case !r.Deadline().IsZero() && (r.Deadline().Before(now) || !r.Deadline().After(s.At)):
			why = ttlEnded
		default:
			why = store.NotStorable(r, false, finder.Sensitive)
		}
		if why != "" {
			s.LeftOut[why]++
			continue
		}
		s.Resources = append(s.Resources, r)
	}
	known := make(map[string]bool)
	for f := range facts {
		if f.Kind == cache.KnownFact {
			known[f.Type] = true
		}
	}
	for _, typeURL := range xds.Types() {
		if known[typeURL] {
			s.Types = append(s.Types, typeURL)
		}
	}
	for _, typeURL := range []string{xds.ClusterType, xds.ListenerType} {
		if !known[typeURL] || there[typeURL] && !accepted[typeURL] {
			return nil, notYet(fmt.Sprintf("no %s is accepted: an Envoy must have its configuration first", xds.Short(typeURL)))
		}
	}
	return s, nil
}

// StoredSeed makes a seed of the state on disk of Envoys; see Stored for the arguments. A role of "" is the cluster of
// the node.
func StoredSeed(dir, owner string, keys [][]byte, node *corev3.Node, role string) (*seed.Seed, error) {
	loaded, err := store.Read(store.Config{Dir: dir, Identity: cmp.Or(owner, identity(node)), Keys: keys, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	name, err := storedGroup(loaded, node)
	if err != nil {
		return nil, fmt.Errorf("state in %s: %w", dir, err)
	}
	var saved []cache.Saved
	for key, e := range loaded.Entries {
		if key.Group == name {
			saved = append(saved, cache.Saved{Type: key.Type, Name: key.Name, Content: e.Content, Accepted: e.Accepted, Previous: e.Previous})
		}
	}
	facts := make(map[cache.Fact]string)
	var contact time.Time
	for key, value := range loaded.Notes {
		if key.Group != name {
			continue
		}
		if key.Name == contactNote {
			contact, _ = time.Parse(time.RFC3339, value)
		} else if f, ok := parseFact(key.Name); ok {
			facts[f] = value
		}
	}
	return makeSeed(cmp.Or(role, node.GetCluster()), contact, saved, facts)
}

// ownEnvoys returns the group of the agent's Envoys: that of its own node or, if that is not known, the only one.
func (a *Agent) ownEnvoys() (*group.Member, error) {
	var found []*group.Member
	for _, m := range a.groups.Members() {
		if m.Key().UserAgent != xds.EnvoyUserAgent {
			continue
		}
		if a.cfg.Node != nil && m.Key().Node == a.cfg.Node.GetId() {
			return m, nil
		}
		found = append(found, m)
	}
	switch len(found) {
	case 0:
		return nil, notYet("no Envoy has connected yet")
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d Envoys with different nodes use this agent: give the node with --bootstrap or --node-id", len(found))
}

// makeOwnSeed makes a seed of what the agent's Envoys have accepted.
func (a *Agent) makeOwnSeed() (*seed.Seed, error) {
	m, err := a.ownEnvoys()
	if err != nil {
		return nil, err
	}
	saved, facts := m.Cache().Saved()
	return makeSeed(a.cfg.Seed.role(m.Node()), m.Contact(), saved, facts)
}

// Seed returns the file of an unsigned seed of what the agent's Envoys have accepted.
func (a *Agent) Seed() ([]byte, error) {
	s, err := a.makeOwnSeed()
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	return seed.Encode(s, nil)
}

// NewPod reads the seed that a new pod would be served if no control plane answered; nil if the agent has none.
func (a *Agent) NewPod(ctx context.Context) (*admin.NewPod, error) {
	if a.cfg.Seed.Source == nil {
		return nil, nil
	}
	out := &admin.NewPod{Place: a.cfg.Seed.Source.String()}
	node := a.cfg.Node
	if m, err := a.ownEnvoys(); err == nil {
		node = m.Node()
	}
	s, err := a.cfg.Seed.Source.Read(ctx, a.cfg.Seed.role(node))
	if err != nil {
		return out, err
	}
	out.Role, out.At, out.SignedBy, out.LeftOut = s.Role, s.At, s.SignedBy, s.LeftOut
	out.Resources = make(map[string]int)
	for _, r := range s.Resources {
		out.Resources[xds.Short(r.Type)]++
	}
	return out, nil
}

// publishing is the state of the seed that the agent publishes.
type publishing struct {
	mu    sync.Mutex
	state admin.Publishing
}

func (p *publishing) update(change func(*admin.Publishing)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
}

func (p *publishing) get() admin.Publishing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

const (
	// publishTimeout bounds one attempt to publish.
	publishTimeout = time.Minute
	// maxFirstPublish bounds the time until the first attempt.
	maxFirstPublish = 10 * time.Second
)

// publishSeeds publishes a seed until ctx ends, whenever that which is there is older than Every. Each agent of a
// role looks at a random time, so that one of them publishes and the others see that.
func (a *Agent) publishSeeds(ctx context.Context) {
	place, every := a.cfg.Seed.Publish, cmp.Or(a.cfg.Seed.Every, seed.DefaultPublishEvery)
	if place == nil {
		return
	}
	a.seeds.update(func(p *admin.Publishing) { p.Place = place.String() })
	pause := rand.N(min(every, maxFirstPublish))
	for wake.Sleep(ctx, pause) {
		attempt, cancel := context.WithTimeout(ctx, publishTimeout)
		err := a.publishSeed(attempt, place, every)
		cancel()
		if ctx.Err() != nil {
			return
		}
		waits := ""
		if not, is := errors.AsType[notYet](err); is {
			waits, err = not.Error(), nil
		}
		before := a.seeds.get().Error
		a.seeds.update(func(p *admin.Publishing) {
			p.Error, p.Waits = text(err), waits
			if err != nil {
				p.Failures++
			}
		})
		if err != nil && err.Error() != before {
			a.cfg.Log.Warn("seed not published: a new pod that needs one gets an older one, or none", "place", place.String(), "err", err)
		}
		pause = every/2 + rand.N(every)
		if err != nil || waits != "" {
			pause = min(pause, maxFirstPublish/2+rand.N(maxFirstPublish))
		}
	}
}

// publishSeed publishes a seed if that which is there is older than every.
func (a *Agent) publishSeed(ctx context.Context, place seed.Place, every time.Duration) error {
	m, err := a.ownEnvoys()
	switch {
	case err != nil:
		return err
	case !m.Connected():
		return nil // what is there is as good
	case m.Cache().Fallback() != nil:
		return errors.New("what crashes Envoy is held back: nothing is published meanwhile")
	}
	role, at, err := place.Published(ctx)
	own := a.cfg.Seed.role(m.Node())
	switch {
	case err != nil:
		return err
	case role != "" && role != own:
		return fmt.Errorf("it has a seed of the role %q, and this agent has %q: give each role a place of its own, or the right --seed-role", role, own)
	case time.Since(at) < every:
		a.seeds.update(func(p *admin.Publishing) { p.There = at })
		return nil
	}
	s, err := a.makeOwnSeed()
	if err != nil {
		return err
	}
	data, err := seed.Encode(s, a.cfg.Seed.Key)
	if err != nil {
		return err
	}
	err = place.Publish(ctx, s, data)
	if errors.Is(err, seed.ErrAnother) {
		return nil
	}
	if err != nil {
		return err
	}
	a.seeds.update(func(p *admin.Publishing) { p.At, p.There, p.Bytes = time.Now(), s.At, len(data) })
	a.cfg.Log.Debug("seed published", "place", place.String(), "resources", len(s.Resources), "bytes", len(data))
	return nil
}
