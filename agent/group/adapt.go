package group

import (
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// writer is the group as its sources see it.
type writer struct{ g *Group }

var _ upstream.State = writer{}

func (f writer) Node() *corev3.Node { return f.g.Node() }

func (f writer) Apply(u xds.Update, verdict func(error)) {
	var applied atomic.Bool
	if f.g.cfg.Answered != nil && verdict != nil {
		// The update itself is not held by the verdict that it waits for.
		began, answered, typeURL := time.Now(), verdict, u.Type
		var once sync.Once
		verdict = func(err error) {
			once.Do(func() {
				if applied.Load() { // else no client was concerned
					f.g.cfg.Answered(typeURL, time.Since(began))
				}
			})
			answered(err)
		}
	}
	f.g.cache.Apply(u, verdict)
	applied.Store(true)
}

func (f writer) Synced(source, typeURL string, asked time.Time) {
	f.g.cache.Synced(source, typeURL, asked)
}

func (f writer) RequestAgain() time.Time { return f.g.cache.AskAgain() }

func (f writer) Cached(source, typeURL string) map[string]string {
	return f.g.cache.Held(source, typeURL)
}

func (f writer) Nacked(source, typeURL string) []string {
	return f.g.cache.Nacked(source, typeURL)
}

func (f writer) Body(typeURL string, name []byte) *anypb.Any { return f.g.cache.Body(typeURL, name) }

func (f writer) Subscriptions() upstream.Subscriptions { return f.g.cache.Subscriptions() }

// secrets is the group as who makes certificates sees it.
type secrets struct {
	cache *cache.Cache
	*cache.Subscriptions
}

var _ sds.State = secrets{}

func (s secrets) Publish(made []*xds.Resource, verdict func(error)) { s.cache.Publish(made, verdict) }

func (s secrets) Withdraw(names []string) { s.cache.Withdraw(xds.SecretType, names) }

func (s secrets) Take() (add, drop []string) {
	for _, w := range s.Subscriptions.Changes() { // of secrets only: nothing else is local
		add, drop = append(add, w.Subscribe...), append(drop, w.Unsubscribe...)
	}
	return add, drop
}

// view is the state as a stream sees it.
type view struct {
	watch *cache.Watch
	cache *cache.Cache
	left  func(byServer bool) // called when the stream has ended; nil for nothing
}

var _ downstream.View = view{}

func (v view) Changed() <-chan struct{} { return v.watch.Changed() }

func (v view) Begin() (session.View, []xds.Change) { return v.watch.Begin() }

func (v view) End() { v.watch.End() }

func (v view) HadWildcard(typeURL string) bool { return v.cache.HadWildcard(typeURL) }

func (v view) Subscribe(in xds.SubscriptionChange) {
	v.watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
}

func (v view) Answer(verdict session.Answer) {
	if verdict.NACK {
		v.watch.Nack(verdict.Type, verdict.Revision, verdict.Error, verdict.Nacked, verdict.Suspects)
		return
	}
	v.watch.Ack(verdict.Type, verdict.Acked, verdict.Removed)
}

func (v view) Progress(p session.Progress) { v.watch.Progress(p.Type, p.Revision) }

func (v view) Close(end downstream.End) {
	v.watch.Close(end.Unanswered)
	if v.left != nil {
		v.left(end.ByServer)
	}
}
