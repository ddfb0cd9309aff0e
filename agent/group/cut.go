package group

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// errCut is why no source of a group is connected that is cut off.
var errCut = errors.New("cut off by a rehearsal (holdfast rehearse --live)")

// Cut ends the streams to all sources, and opens none until it is called with false, as if no source could be
// reached. It may be called before Run.
func (g *Group) Cut(cut bool) {
	g.mu.Lock()
	changed := g.cut != cut
	g.cut = cut
	g.mu.Unlock()
	if !changed {
		return
	}
	wake.Signal(g.cutChanged)
	if cut {
		wake.Signal(g.failed)
		wake.Signal(g.withoutSource)
	}
}

func (g *Group) isCut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cut
}

// endSources ends the runs of the sources. The caller is runSources, which alone begins runs.
func (g *Group) endSources() {
	g.mu.Lock()
	runs := []*sourcesRun{g.current, g.successor}
	g.successor = nil
	g.mu.Unlock()
	for _, r := range runs {
		if r != nil && r.begun {
			r.cancel()
			<-r.done
		}
	}
}

// forwardable returns an error while the group is cut off.
func (g *Group) forwardable() error {
	if g.isCut() {
		return status.Error(codes.Unavailable, errCut.Error())
	}
	return nil
}
