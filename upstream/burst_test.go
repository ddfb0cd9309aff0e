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

// watched is a state that signals its first update.
type watched struct {
	*state
	changed chan struct{}
}

func (s *watched) Apply(u xds.Update, answer func(error)) {
	s.state.Apply(u, answer)
	wake.Signal(s.changed)
}

func TestClientsAreServedInTheMiddleOfABurst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as with one client
	body, err := proto.Marshal(xdstest.Cluster("c1", ""))
	if err != nil {
		t.Fatal(err)
	}
	wire := &atOnce{}
	const responses = 8 * burst
	for i := range responses {
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
	seen := make(chan int, 1)
	go func() { // as a client's sender
		<-s.changed
		seen <- len(s.applied())
	}()
	if err := st.receiveAll(t.Context()); err == nil {
		t.Fatal("the stream did not end")
	}
	if all := len(s.applied()); all != responses {
		t.Fatalf("%d of %d responses were applied", all, responses)
	}
	if n := <-seen; n > burst {
		t.Errorf("a client was served after %d responses that came at once, not after %d at most", n, burst)
	}
}
