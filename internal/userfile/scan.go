package userfile

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrSlow is what an error of Scan.Do satisfies if the read goes on.
var ErrSlow = errors.New("is it on a volume that hangs?")

// A Scan runs a read that may hang, such as that of a directory on a network volume that is away, one at a time. The zero value is ready; one
// goroutine may call Do.
type Scan[T any] struct{ running chan T }

// Do returns the result of read, or an error if that takes too long or ctx ends before. Then read goes on, and the next Do waits for its end instead of
// calling its own: at most one goroutine hangs.
func (s *Scan[T]) Do(ctx context.Context, read func() T) (result T, err error) {
	if s.running == nil {
		running := make(chan T, 1)
		s.running = running
		go func() { running <- read() }()
	}
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	select {
	case result = <-s.running:
		s.running = nil
		return result, nil
	case <-ctx.Done():
		return result, context.Cause(ctx)
	case <-limit.C:
		return result, fmt.Errorf("it is not read within %s: %w", timeout, ErrSlow)
	}
}
