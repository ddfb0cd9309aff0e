package group

import (
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/upstream"
)

// While a run takes over from one that has not ended yet, another Node may come, or a cut: nobody else writes to the group afterwards.
func TestWhileARunTakesOverItIsTheOneThatIsEnded(t *testing.T) {
	type run struct {
		*sourcesRun
		cancelled bool
	}
	setUp := func(t *testing.T) (g *Group, next func() *run, first *run) {
		g = New(Config{Node: &corev3.Node{Id: "n"}, Upstreams: func() *upstream.Failover { return &upstream.Failover{} }})
		// next is a run that has begun, and that ends when done is closed.
		next = func() *run {
			r := &run{sourcesRun: g.newRun()}
			r.begun, r.cancel = true, func() { r.cancelled = true }
			g.successor = r.sourcesRun
			return r
		}
		first = next()
		g.current, g.successor = first.sourcesRun, nil
		return g, next, first
	}
	t.Run("another node", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			g, next, first := setUp(t)
			second := next()
			go g.takeOver(second.sourcesRun)
			synctest.Wait()
			third := next()
			go g.takeOver(third.sourcesRun)
			synctest.Wait()
			close(first.done)
			synctest.Wait()
			if !first.cancelled || !second.cancelled || third.cancelled || g.current != third.sourcesRun {
				t.Errorf("cancelled: %v, %v, %v; the last one is the current one: %v", first.cancelled, second.cancelled, third.cancelled, g.current == third.sourcesRun)
			}
			close(second.done)
		})
	})
	t.Run("a cut", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			g, next, first := setUp(t)
			second := next()
			go func() {
				g.takeOver(second.sourcesRun)
				close(second.done) // it is cancelled, and so it ends
			}()
			synctest.Wait()
			ended := make(chan struct{})
			go func() {
				g.endSources()
				close(ended)
			}()
			synctest.Wait()
			select {
			case <-ended:
				t.Error("it does not wait for the run that takes over")
			default:
			}
			close(first.done)
			<-ended
			if !first.cancelled || !second.cancelled {
				t.Errorf("cancelled: %v, %v", first.cancelled, second.cancelled)
			}
		})
	})
}
