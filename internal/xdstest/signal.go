package xdstest

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"
)

// signal wakes all goroutines that wait for a change. The zero value is ready to use. The waiting
// goroutines create its channels, so that these belong to their synctest bubble.
type signal struct {
	mu sync.Mutex
	// ch is closed and cleared by raise; nil while no goroutine waits.
	ch chan struct{}
}

func (s *signal) raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// wait returns nil as soon as until holds, which it evaluates again after every raise, and the error of
// ctx if that ends first.
func (s *signal) wait(ctx context.Context, until func() bool) error {
	for {
		changed := s.next()
		if until() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if until() {
				return nil
			}
			return context.Cause(ctx)
		}
	}
}

// outbox is the queue of messages to send on a stream. It is unbounded, because a script must not block
// on a peer that does not read.
type outbox struct {
	mu    sync.Mutex
	queue []outgoing
	// wake holds a value when the queue may have grown.
	wake chan struct{}
}

// outgoing is a message or, if msg is nil, the end of the stream with err.
type outgoing struct {
	msg proto.Message
	err error
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) put(out outgoing) {
	o.mu.Lock()
	o.queue = append(o.queue, out)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) take() []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.queue
	o.queue = nil
	return queue
}

// run sends the messages in order until it reaches the end of the stream, send fails, done is closed or
// ctx ends. Only the first two are errors of the stream.
func (o *outbox) run(ctx context.Context, done <-chan struct{}, send func(any) error) error {
	for {
		for _, out := range o.take() {
			if out.msg == nil {
				return out.err
			}
			if err := send(out.msg); err != nil {
				return err
			}
		}
		select {
		case <-o.wake:
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
