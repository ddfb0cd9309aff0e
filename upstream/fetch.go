package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// answerTimeout bounds how long Fetch waits for the server to end the stream, so that it gets the answer.
const answerTimeout = time.Second

// Fetch requests all resources of a type for a node, once, on a Delta stream of its own, and calls accept with them, in the
// order of their names. The response is ACKed, or NACKed with what accept returns as nack. An error of accept is returned,
// and also sent as a NACK. A control plane that does not know the type may never respond; so ctx must have a deadline, which
// is that of accept, too.
func (a *ADS) Fetch(ctx context.Context, node *corev3.Node, typeURL string, accept func(context.Context, []*discoveryv3.Resource) (nack, err error)) (err error) {
	dialing := &dialing{dialer: a.dialer}
	defer func() { err = dialing.classify(a.explain(err)) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, ctx, err := a.connect(ctx, dialing)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return fmt.Errorf("opening the ADS stream: %w", err)
	}
	request := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: []string{xds.Wildcard}}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // a stream that has ended already: Recv says why
		return fmt.Errorf("sending: %w", err)
	}
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF), status.Code(err) == codes.DeadlineExceeded:
			// The deadline ends the stream on both sides: the server may be first, and is free to end it without an error.
			return fmt.Errorf("no response for %s: does the control plane serve it?", xds.Short(typeURL))
		case err != nil:
			return fmt.Errorf("receiving: %w", err)
		case resp.GetTypeUrl() != typeURL:
			continue
		}
		resources := slices.SortedFunc(slices.Values(resp.GetResources()), func(x, y *discoveryv3.Resource) int {
			return strings.Compare(x.GetName(), y.GetName())
		})
		answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: resp.GetNonce()}
		nack, failure := accept(ctx, resources)
		if reason := cmp.Or(failure, nack); reason != nil {
			answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: redact.Line(reason.Error())}
		}
		if stream.Send(answer) == nil && stream.CloseSend() == nil {
			time.AfterFunc(answerTimeout, cancel)
			for err == nil {
				_, err = stream.Recv()
			}
		}
		return failure
	}
}
