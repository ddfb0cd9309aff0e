package upstream

import (
	"context"
	"io"
	"runtime"
	"strconv"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// atOnce is a wire on which all responses have arrived already.
type atOnce []*discoveryv3.DeltaDiscoveryResponse

func (*atOnce) send(context.Context, *session.Request, *corev3.Node) error { return nil }

func (w *atOnce) recv(context.Context) (message, error) {
	if len(*w) == 0 {
		return nil, io.EOF
	}
	first := (*w)[0]
	*w = (*w)[1:]
	return first, nil
}

// watched is a state that signals each update.
type watched struct {
	*state
	changed chan struct{}
}

func (s *watched) Apply(u xds.Update, answer func(error)) {
	s.state.Apply(u, answer)
	wake.Signal(s.changed)
}

func TestClientsAreServedInTheMiddleOfABurst(t *testing.T) {
	served, before, late := servedAfter(t), 0, 0
	for _, n := range served {
		if n-before > burst {
			late++
		}
		// Go's scheduler lets the goroutine that yields go on at every 61st switch: once here at most.
		if n-before > 2*burst || late > 1 {
			t.Errorf("a client was served after %v responses that came at once, more than %d apart", served, burst)
			break
		}
		before = n
	}
	if most := served[len(served)-1] / 4; len(served) > most {
		t.Errorf("a client was served %d times, more than %d: responses of a burst are not joined", len(served), most)
	}
}

// A single update, as most are, does not wait for what else the receiver has to do.
func TestClientsAreServedAtOnceAfterAPause(t *testing.T) {
	const runs = 20
	prompt := 0
	for range runs {
		if servedAfter(t)[0] == 1 {
			prompt++
		}
	}
	if prompt < runs/2 {
		t.Errorf("a client was served after the first response in %d of %d runs", prompt, runs)
	}
}

// servedAfter returns after how many responses a client was served, each time, when many come at once after a pause.
func servedAfter(t *testing.T) (responses []int) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as with one client
	body, err := proto.Marshal(xdstest.Cluster("c1", ""))
	if err != nil {
		t.Fatal(err)
	}
	wire := &atOnce{}
	const all = 8 * burst
	for i := range all {
		*wire = append(*wire, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: strconv.Itoa(i), Resources: []*discoveryv3.Resource{
			{Name: "c1", Version: strconv.Itoa(i), Resource: &anypb.Any{TypeUrl: xds.ClusterType, Value: body}},
		}})
	}
	s := &watched{everyCluster(), make(chan struct{}, 1)}
	st := &stream{
		server: newServer(Config{Form: xds.Delta}), state: s, wire: wire, onAnswer: func() error { return nil },
		wake: make(chan struct{}, 1), machine: session.New(session.Config{Form: xds.Delta}),
	}
	st.machine.Subscribe(xds.ClusterType, true, nil, nil)
	node := s.Node()
	if _, err := st.flush(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // as a client's sender
		defer close(ended)
		for range s.changed {
			if responses = append(responses, len(s.applied())); responses[len(responses)-1] == all {
				return
			}
		}
	}()
	if err := st.receiveAll(t.Context()); err == nil {
		t.Fatal("the stream did not end")
	}
	if n := len(s.applied()); n != all {
		t.Fatalf("%d of %d responses were applied", n, all)
	}
	<-ended
	return responses
}
