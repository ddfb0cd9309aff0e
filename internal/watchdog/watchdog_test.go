package watchdog

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// lock is a lock for virtual time, in which nobody may wait for a sync.Mutex.
type lock chan struct{}

func (l lock) take()    { l <- struct{}{} }
func (l lock) release() { <-l }

func TestALockThatIsNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		locks := map[string]lock{"the set": make(lock, 1), "the cache of a": make(lock, 1), "the streams": make(lock, 1)}
		w := New(func(take Take) {
			for _, name := range []string{"the set", "the cache of a", "the streams"} {
				take(name, func() {
					locks[name].take()
					locks[name].release()
				})
			}
		})
		live := func(want string) {
			t.Helper()
			got := ""
			if err := w.Live(); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		live("") // before Run
		done := make(chan struct{})
		go func() {
			w.Run(ctx)
			close(done)
		}()
		time.Sleep(time.Hour + Every/2)
		live("")
		for name, held := range locks {
			held.take()
			time.Sleep(stuckAfter - Every)
			live("") // the last round ended half a second before the lock was taken
			time.Sleep(2 * Every)
			live("deadlocked since 17s: a lock of " + name + " is not released")
			held.release()
			synctest.Wait()
			live("")
			time.Sleep(Every / 2)
		}
		end()
		<-done
	})
}
