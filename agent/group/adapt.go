package group

import (
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

func (w writer) Node() *corev3.Node { return w.g.Node() }

func (w writer) Apply(u xds.Update, answer func(nack error)) {
	var applied atomic.Bool
	if w.g.cfg.Answered != nil && answer != nil {
		began, call, typeURL := time.Now(), answer, u.Type // the closure must not keep the update in memory
		answer = func(nack error) {
			if applied.Load() { // an answer before that did not wait for a client
				w.g.cfg.Answered(typeURL, time.Since(began))
			}
			call(nack)
		}
	}
	w.g.cache.Apply(u, answer)
	applied.Store(true)
}

func (w writer) Synced(source, typeURL string, asked time.Time) {
	w.g.cache.Synced(source, typeURL, asked)
}

func (w writer) RequestAgain() time.Time { return w.g.cache.AskAgain() }

func (w writer) Cached(source, typeURL string) map[string]string {
	return w.g.cache.Held(source, typeURL)
}

func (w writer) Nacked(source, typeURL string) []string {
	return w.g.cache.Nacked(source, typeURL)
}

func (w writer) Body(typeURL string, name []byte) *anypb.Any { return w.g.cache.Body(typeURL, name) }

func (w writer) Subscriptions() upstream.Subscriptions { return w.g.cache.Subscriptions() }

// secrets is the group as the maker of certificates sees it.
type secrets struct {
	cache *cache.Cache
	*cache.Subscriptions
}

var _ sds.State = secrets{}

func (s secrets) Publish(made []*xds.Resource, answer func(nack error)) {
	s.cache.Publish(made, answer)
}

func (s secrets) Withdraw(names []string) { s.cache.Withdraw(xds.SecretType, names) }

func (s secrets) Take() (add, drop []string) {
	for _, ch := range s.Subscriptions.Changes() { // of secrets only: nothing else is local
		add, drop = append(add, ch.Subscribe...), append(drop, ch.Unsubscribe...)
	}
	return add, drop
}

// view is the cache as a stream sees it.
type view struct {
	watch  *cache.Watch
	cache  *cache.Cache
	closed func(byServer bool) // called when the stream has ended; may be nil
}

var _ downstream.View = view{}

func (v view) Changed() <-chan struct{} { return v.watch.Changed() }

func (v view) Begin() (session.View, []xds.Change) { return v.watch.Begin() }

func (v view) End() { v.watch.End() }

func (v view) HadWildcard(typeURL string) bool { return v.cache.HadWildcard(typeURL) }

func (v view) Subscribe(in xds.SubscriptionChange) {
	v.watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
}

func (v view) Answer(a session.Answer) {
	if a.NACK {
		v.watch.Nack(a.Type, a.Revision, a.Error, a.Nacked, a.Suspects)
		return
	}
	v.watch.Ack(a.Type, a.Acked, a.Removed)
}

func (v view) Progress(p session.Progress) { v.watch.Progress(p.Type, p.Revision) }

func (v view) Close(end downstream.End) {
	v.watch.Close(end.Unanswered)
	if v.closed != nil {
		v.closed(end.ByServer)
	}
}
