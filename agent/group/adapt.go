package group

import (
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// writer is the group as its sources see it.
type writer struct {
	*cache.Cache
	g *Group
}

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
	w.Cache.Apply(u, answer)
	applied.Store(true)
}

func (w writer) Subscriptions() upstream.Subscriptions { return w.Cache.Subscriptions() }

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
	*cache.Watch
	cache  *cache.Cache
	closed func(byServer bool) // called when the stream has ended; may be nil
	// departed is called after closed; nil if the group is not in a Set.
	departed func()
}

var _ downstream.View = view{}

func (v view) Begin() (session.View, []xds.Change) { return v.Watch.Begin() }

func (v view) HadWildcard(typeURL string) bool { return v.cache.HadWildcard(typeURL) }

func (v view) Subscribe(in xds.SubscriptionChange) {
	v.Watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
}

func (v view) Answer(a session.Answer) {
	if a.NACK {
		v.Watch.Nack(a.Type, a.Revision, a.Error, a.Nacked, a.Suspects)
		return
	}
	v.Watch.Ack(a.Type, a.Acked, a.Removed)
}

func (v view) Progress(p session.Progress) { v.Watch.Progress(p.Type, p.Revision) }

func (v view) Close(end downstream.End) {
	v.Watch.Close(end.Unanswered)
	if v.closed != nil {
		v.closed(end.ByServer)
	}
	if v.departed != nil {
		v.departed()
	}
}
