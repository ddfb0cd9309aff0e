package xdstest

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// stream is one open stream of a ControlPlane. All fields but the first group
// are under ControlPlane.mu.
type stream struct {
	number   int
	protocol Protocol
	metadata metadata.MD
	out      *outbox

	// node is what the first message carried.
	node  *corev3.Node
	types map[string]*subscription
	// open holds the nonces, with their type, that got no verdict yet.
	open map[[2]string]bool
}

// subscription is what a stream asks of one type, and what it was sent.
type subscription struct {
	// wildcard says that everything is wanted; legacy that this came of naming
	// nothing, explicit that something was named since.
	wildcard, legacy, explicit bool
	names                      map[string]bool
	// nonce is that of the last answer.
	nonce string
	// sent is what the client is taken to hold: name → version.
	sent map[string]string
	// asked holds names that are to be answered whatever was sent.
	asked map[string]bool
	// owed says that an answer is due even if there is nothing new in it.
	owed bool
}

func newSubscription() *subscription {
	return &subscription{
		names: make(map[string]bool),
		sent:  make(map[string]string),
		asked: make(map[string]bool),
	}
}

// wants reports whether a resource is subscribed to, by name, alias or wildcard.
func (s *subscription) wants(e *entry) bool {
	return s.wildcard && !e.onDemand || e.known(func(name string) bool { return s.names[name] })
}

// distrust forgets which versions the client holds, but not of which resources.
func (s *subscription) distrust() {
	for name := range s.sent {
		s.sent[name] = ""
	}
}

// forget drops what was sent of names that are not wanted any more, so that it
// is sent again when they are.
func (s *subscription) forget(state map[string]*entry) {
	for name := range s.sent {
		if e := state[name]; !s.wildcard && !s.names[name] && (e == nil || !s.wants(e)) {
			delete(s.sent, name)
		}
	}
}

// known reports whether the name or an alias of the resource satisfies a test.
func (e *entry) known(by func(string) bool) bool {
	return by(e.source.GetName()) || slices.ContainsFunc(e.source.GetAliases(), by)
}

// subscribed lists the types of the stream in push order.
func (st *stream) subscribed() []string {
	return slices.SortedFunc(maps.Keys(st.types), xds.CompareTypes)
}

// serve is a stream's life. The wire form decides only which messages are read
// and which handler they go to, so a service of one type fits as well.
func (cp *ControlPlane) serve(ss grpc.ServerStream, protocol Protocol) error {
	st, err := cp.open(ss, protocol)
	if err != nil {
		return err
	}
	defer cp.close(st)
	received := make(chan struct{})
	var failed error // written before received is closed
	cp.running.Go(func() {
		defer close(received)
		failed = cp.receive(ss, st)
	})
	if err := st.out.run(ss.Context(), received, ss.SendMsg); err != nil {
		// The receiving goroutine ends with the context, when this returns.
		if errors.Is(err, context.Canceled) {
			return status.FromContextError(err).Err()
		}
		return err
	}
	if errors.Is(failed, io.EOF) {
		return nil
	}
	return failed
}

func (cp *ControlPlane) open(ss grpc.ServerStream, protocol Protocol) (*stream, error) {
	defer cp.signal.raise()
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.refuse {
		return nil, status.Error(codes.Unavailable, "stream refused by the script")
	}
	md, _ := metadata.FromIncomingContext(ss.Context())
	cp.opened++
	st := &stream{
		number:   cp.opened,
		protocol: protocol,
		metadata: md,
		out:      newOutbox(),
		types:    make(map[string]*subscription),
		open:     make(map[[2]string]bool),
	}
	cp.streams[st.number] = st
	cp.log(st, Event{Kind: Opened})
	return st, nil
}

func (cp *ControlPlane) close(st *stream) {
	cp.mu.Lock()
	delete(cp.streams, st.number)
	cp.log(st, Event{Kind: Closed})
	cp.mu.Unlock()
	cp.signal.raise()
}

func (cp *ControlPlane) log(st *stream, e Event) {
	e.Stream, e.Protocol, e.Metadata = st.number, st.protocol, st.metadata
	cp.events = append(cp.events, e)
}

func (cp *ControlPlane) receive(ss grpc.ServerStream, st *stream) error {
	for {
		switch st.protocol {
		case SotW:
			var req discoveryv3.DiscoveryRequest
			if err := ss.RecvMsg(&req); err != nil {
				return err
			}
			cp.mu.Lock()
			cp.handleSotW(st, &req)
			cp.mu.Unlock()
		case Delta:
			var req discoveryv3.DeltaDiscoveryRequest
			if err := ss.RecvMsg(&req); err != nil {
				return err
			}
			cp.mu.Lock()
			cp.handleDelta(st, &req)
			cp.mu.Unlock()
		}
		cp.signal.raise()
	}
}

// verdict classifies a request and takes the verdict for its nonce. answered
// says that the nonce had one before.
func (st *stream) verdict(typeURL, nonce string, failed bool) (kind Kind, answered bool) {
	key := [2]string{typeURL, nonce}
	open := st.open[key]
	delete(st.open, key)
	switch {
	case failed:
		return Nack, !open
	case open:
		return Ack, false
	default:
		return Subscribe, nonce != ""
	}
}

// handleSotW takes in a request, protocol.md section 1.
func (cp *ControlPlane) handleSotW(st *stream, req *discoveryv3.DiscoveryRequest) {
	typeURL, nonce := req.GetTypeUrl(), req.GetResponseNonce()
	kind, answered := st.verdict(typeURL, nonce, req.GetErrorDetail() != nil)
	cp.log(st, Event{
		Kind: kind, Type: typeURL, Version: req.GetVersionInfo(), Nonce: nonce,
		Names: req.GetResourceNames(), Error: req.GetErrorDetail(), Node: req.GetNode(),
	})
	if st.node == nil {
		st.node = req.GetNode()
	}
	sub, known := st.types[typeURL]
	switch {
	case !known && nonce != "" || typeURL == "":
		return // 1.12: the verdict on an answer that was not asked for
	case !known:
		sub = newSubscription()
		st.types[typeURL] = sub
		sub.owed = true // 1.1
	case nonce != "" && nonce != sub.nonce:
		return // 1.6: stale
	}
	grew, changed := cp.rename(st, sub, typeURL, !known, req.GetResourceNames())
	repeated := typeURL == xds.EndpointType && kind == Subscribe && answered && !changed
	if grew || repeated {
		sub.owed = true // 1.5, 1.4
	}
	if !known && !sub.wildcard && len(sub.names) == 0 {
		sub.owed = false // 2.1: no subscription
	}
	cp.answer(st, typeURL)
}

// rename sets the names of a SotW subscription, protocol.md section 2.
func (cp *ControlPlane) rename(st *stream, sub *subscription, typeURL string, first bool, names []string) (grew, changed bool) {
	wasWildcard, old := sub.wildcard, sub.names
	envoy := typeURL == xds.ClusterType && st.node.GetUserAgentName() == "envoy"
	sub.names = make(map[string]bool, len(names))
	star := false
	for _, name := range names {
		if name == xds.Wildcard {
			star = true
		} else {
			sub.names[name] = true
		}
	}
	switch {
	case star:
		sub.wildcard, sub.legacy = true, false
	case first && len(names) == 0 && xds.Info(typeURL).LegacyWildcard:
		sub.wildcard, sub.legacy = true, true
	case first && envoy && cp.wildcardNodes[st.node.GetId()]:
		sub.wildcard, sub.legacy = true, true // 2.4: names only, after a reconnect
	case sub.legacy && (envoy || len(names) == 0 && !sub.explicit):
		// 2.4, 2.3: the wildcard stays.
	default:
		sub.wildcard, sub.legacy = false, false
	}
	if sub.legacy && envoy {
		cp.wildcardNodes[st.node.GetId()] = true
	}
	sub.explicit = sub.explicit || len(names) > 0
	grew = sub.wildcard && !wasWildcard
	for name := range sub.names {
		grew = grew || !old[name]
	}
	changed = grew || sub.wildcard != wasWildcard || len(sub.names) != len(old)
	sub.forget(cp.state[typeURL])
	return grew, changed
}

// handleDelta takes in a request, protocol.md section 3.
func (cp *ControlPlane) handleDelta(st *stream, req *discoveryv3.DeltaDiscoveryRequest) {
	typeURL, nonce := req.GetTypeUrl(), req.GetResponseNonce()
	kind, _ := st.verdict(typeURL, nonce, req.GetErrorDetail() != nil)
	cp.log(st, Event{
		Kind: kind, Type: typeURL, Nonce: nonce,
		Subscribe: req.GetResourceNamesSubscribe(), Unsubscribe: req.GetResourceNamesUnsubscribe(),
		Initial: req.GetInitialResourceVersions(), Error: req.GetErrorDetail(), Node: req.GetNode(),
	})
	if st.node == nil {
		st.node = req.GetNode()
	}
	sub, known := st.types[typeURL]
	if !known {
		if nonce != "" && len(req.GetResourceNamesSubscribe()) == 0 || typeURL == "" {
			return // the verdict on an answer that was not asked for
		}
		sub = newSubscription()
		st.types[typeURL] = sub
		maps.Copy(sub.sent, req.GetInitialResourceVersions())
		if cp.config.ResendAll || cp.config.EmptyVersions {
			sub.distrust()
		}
		if len(req.GetResourceNamesSubscribe()) == 0 && xds.Info(typeURL).LegacyWildcard {
			sub.wildcard, sub.owed = true, true // 2.1, 2.7
		}
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		if name == xds.Wildcard {
			sub.wildcard = false
		} else if delete(sub.names, name); sub.wildcard {
			sub.asked[name] = true // 2.5
		}
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == xds.Wildcard {
			sub.wildcard, sub.owed = true, true
			continue
		}
		sub.names[name] = true
		// 3.2: only a name that came with its version need not be answered.
		if e := cp.state[typeURL][name]; known || e == nil || sub.sent[name] != e.version || typeURL == xds.EndpointType {
			sub.asked[name] = true
		}
	}
	if known {
		sub.forget(cp.state[typeURL])
	}
	cp.answer(st, typeURL)
}
