// Package change brings the documents of a store to what other documents say: it finds out what has to be created, replaced
// and deleted, and does it.
//
// It promises that nothing is written before all documents are valid, that a document that says what is stored is not
// written, and that no change of somebody else is overwritten: each write replaces what was read when the Plan was made. One
// write that fails does not keep the others back. A Plan is used by one goroutine at a time.
package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/aymanbagabas/go-udiff"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Verb is what happens to a document.
type Verb string

// The verbs are those of kubectl.
const (
	Created    Verb = "created"
	Configured Verb = "configured"
	Unchanged  Verb = "unchanged"
	Pruned     Verb = "pruned" // it is in none of the documents that are applied
	Deleted    Verb = "deleted"
)

// Action is what has to happen to one document.
type Action struct {
	Key  config.Key
	Verb Verb
	// Old is what is stored, nil for nothing and for what cannot be read; Version is its resource version, "" for nothing.
	Old     *config.Config
	Version string
	New     *config.Config // nil if it is deleted
	// Err is why it could not be done. Do sets it.
	Err error
}

// Plan is what has to happen, in the order in which it is done: what others may refer to comes first, and deletions come last.
type Plan struct{ Actions []Action }

// Stored is a document of a store; Config is nil if it cannot be read.
type Stored struct {
	Key     config.Key
	Config  *config.Config
	Version string
}

// New compares documents with what is stored. With prune, what is stored and is in none of the documents is deleted.
func New(stored []Stored, documents []*config.Config, prune bool) *Plan {
	p := &Plan{}
	there := make(map[config.Key]Stored, len(stored))
	for _, s := range stored {
		there[s.Key] = s
	}
	for _, doc := range documents {
		old, has := there[doc.Meta.Key]
		a := Action{Key: doc.Meta.Key, Verb: Created, New: doc}
		if has {
			a.Verb, a.Old, a.Version = Configured, old.Config, old.Version
			a.New = keeping(doc, old.Config)
			if old.Config != nil && config.Same(old.Config, a.New) {
				a.Verb = Unchanged
			}
		}
		delete(there, doc.Meta.Key)
		p.Actions = append(p.Actions, a)
	}
	if !prune {
		return p
	}
	for _, s := range stored {
		if _, left := there[s.Key]; left {
			p.Actions = append(p.Actions, Action{Key: s.Key, Verb: Pruned, Old: s.Config, Version: s.Version})
		}
	}
	return p
}

// keeping returns a document with the time of creation of the one that it replaces, unless it has one.
func keeping(doc, old *config.Config) *config.Config {
	if old == nil || !doc.Created.IsZero() {
		return doc
	}
	kept := *doc
	kept.Created = old.Created
	return &kept
}

// Count returns how many documents have a verb.
func (p *Plan) Count(verb Verb) (n int) {
	for _, a := range p.Actions {
		if a.Verb == verb {
			n++
		}
	}
	return n
}

// minStored is the number of stored documents from which on pruning a share of them can be too much; pruning all of several
// always is (as design.md I10).
const minStored = 10

// CheckPrune returns an error if more documents are pruned than a share of the stored ones, in percent: the wrong directory, or
// one that was not filled yet, looks like that.
func (p *Plan) CheckPrune(stored, percent int) error {
	pruned := p.Count(Pruned)
	if percent >= 100 || pruned <= 1 || pruned < stored && (stored < minStored || pruned*100 <= stored*percent) {
		return nil
	}
	return fmt.Errorf("%d of %d stored documents would be deleted, which looks like the wrong directory: nothing is changed; --max-prune-percent 100 lets it", pruned, stored)
}

// workers is how many writes are under way at once.
const workers = 8

// Do makes the changes, those of each kind at once, and calls done for each action after it, by one goroutine at a time. It
// returns an error if one has failed.
func (p *Plan) Do(ctx context.Context, w config.Writer, done func(Action)) error {
	failed := 0
	for _, phase := range p.phases() {
		failed += p.do(ctx, w, phase, done)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d documents could not be written", failed, len(p.Actions))
	}
	return nil
}

// phases returns the indexes of the actions that may be done at once.
func (p *Plan) phases() (phases [][]int) {
	last := ""
	for i, a := range p.Actions {
		phase := string(a.Key.Kind)
		if a.New == nil {
			phase = "deletions"
		}
		if phase != last {
			phases = append(phases, nil)
			last = phase
		}
		phases[len(phases)-1] = append(phases[len(phases)-1], i)
	}
	return phases
}

// creator is a config.Writer that stores new documents together, all or none.
type creator interface {
	CreateTogether(ctx context.Context, documents []*config.Config) error
}

// create makes the new documents of one phase, the oldest first, so that of two that ask for the same the one has it that has it where
// they come from: several at once, and, if that cannot be done, one after the other. It returns the other changes of the phase, and how
// many have failed.
func (p *Plan) create(ctx context.Context, w config.Writer, indexes []int, done func(Action)) (others []int, failed int) {
	c, ok := w.(creator)
	if !ok {
		return indexes, 0
	}
	var created []int
	for _, i := range indexes {
		if p.Actions[i].Verb == Created {
			created = append(created, i)
		} else {
			others = append(others, i)
		}
	}
	slices.SortStableFunc(created, func(i, j int) int {
		a, b := p.Actions[i].New, p.Actions[j].New
		if a.Created.IsZero() != b.Created.IsZero() {
			if b.Created.IsZero() {
				return -1
			}
			return 1 // it is created now
		}
		return config.Older(a, b)
	})
	for some := range slices.Chunk(created, config.MaxTogether) {
		documents := make([]*config.Config, 0, len(some))
		for _, i := range some {
			documents = append(documents, p.Actions[i].New)
		}
		err := c.CreateTogether(ctx, documents)
		for _, i := range some {
			a := &p.Actions[i]
			switch {
			case errors.Is(err, config.ErrUnanswered):
				a.Err = err // each of them would wait as long
			case err != nil:
				a.Err = a.do(ctx, w)
			}
			if a.Err != nil {
				failed++
			}
			done(*a)
		}
	}
	return others, failed
}

// do makes the changes of one phase, and returns how many have failed.
func (p *Plan) do(ctx context.Context, w config.Writer, indexes []int, done func(Action)) (failed int) {
	indexes, failed = p.create(ctx, w, indexes, done)
	next := make(chan int)
	var mu sync.Mutex
	var running sync.WaitGroup
	for range min(workers, len(indexes)) {
		running.Go(func() {
			for i := range next {
				a := &p.Actions[i]
				a.Err = a.do(ctx, w)
				mu.Lock()
				if a.Err != nil {
					failed++
				}
				done(*a)
				mu.Unlock()
			}
		})
	}
	for _, i := range indexes {
		next <- i
	}
	close(next)
	running.Wait()
	return failed
}

// do makes one change.
func (a Action) do(ctx context.Context, w config.Writer) error {
	switch a.Verb {
	case Created:
		_, err := w.Create(ctx, a.New)
		return err
	case Configured:
		doc := *a.New
		doc.ResourceVersion = a.Version
		_, err := w.Update(ctx, &doc)
		return err
	case Pruned, Deleted:
		err := w.Delete(ctx, a.Key, a.Version)
		if errors.Is(err, config.ErrNotFound) {
			return nil
		}
		return err
	}
	return nil
}

// Diff returns the change of a document as a unified diff of YAML; "" for none. The content of a Secret is not shown, only
// that it differs.
func (a Action) Diff() string {
	if a.Verb == Unchanged {
		return ""
	}
	old, now := "", ""
	if a.Old != nil {
		old = YAML(a.Old)
	}
	if a.New != nil {
		now = YAML(a.New)
	}
	name := strings.ToLower(a.Key.Kind.Label()) + "/" + cmp.Or(a.Key.Namespace, "-") + "/" + a.Key.Name
	text := udiff.Unified("stored/"+name, "new/"+name, old, now)
	if text == "" {
		text = fmt.Sprintf("--- stored/%s\n+++ new/%s\n(the content of the Secret differs)\n", name, name)
	}
	return text
}

// YAML returns a document as people write it. The content of a Secret is left out.
func YAML(doc *config.Config) string {
	text, err := config.Marshal(config.WithoutSecret(doc), config.Author{})
	if err == nil {
		text, err = yamlproto.Block(text)
	}
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	return string(text)
}
