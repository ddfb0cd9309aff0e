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

// stream is one open stream of a ControlPlane. All fields but the first group are protected by
// ControlPlane.mu.
type stream struct {
	number   int
	protocol Protocol
	metadata metadata.MD
	out      *outbox

	// node is the node of the first message.
	node  *corev3.Node
	types map[string]*subscription
	// unanswered contains the types and nonces without an ACK or NACK.
	unanswered map[[2]string]bool
}

// subscription is the subscription of a stream to one type, and what was sent for it.
type subscription struct {
	// wildcard is set if everything is subscribed to, legacy if that is due to a request without names,
	// and explicit if names were sent since then.
	wildcard, legacy, explicit bool
	names                      map[string]bool
	// nonce is the nonce of the last response.
	nonce string
	// sent are the versions by name that the client is assumed to have.
	sent map[string]string
	// requested contains names that must be answered even if they were sent already.
	requested map[string]bool
	// mustAnswer is set if a response must be sent even if nothing has changed.
	mustAnswer bool
}

func newSubscription() *subscription {
	return &subscription{
		names:     make(map[string]bool),
		sent:      make(map[string]string),
		requested: make(map[string]bool),
	}
}

// wants reports whether a resource is subscribed to, by name, alias or wildcard.
func (s *subscription) wants(e *entry) bool {
	return s.wildcard && !e.onDemand || e.hasName(func(name string) bool { return s.names[name] })
}

// forgetVersions forgets the versions that the client has, but not the names.
func (s *subscription) forgetVersions() {
	for name := range s.sent {
		s.sent[name] = ""
	}
}

// forgetUnsubscribed forgets what was sent for names without a subscription, so that it is sent again
// after a new subscription.
func (s *subscription) forgetUnsubscribed(state map[string]*entry) {
	for name := range s.sent {
		if e := state[name]; !s.wildcard && !s.names[name] && (e == nil || !s.wants(e)) {
			delete(s.sent, name)
		}
	}
}

// hasName reports whether the name or an alias of the resource satisfies a condition.
func (e *entry) hasName(by func(string) bool) bool {
	return by(e.resource.GetName()) || slices.ContainsFunc(e.resource.GetAliases(), by)
}

// subscribed lists the types of the stream in push order.
func (st *stream) subscribed() []string {
	return slices.SortedFunc(maps.Keys(st.types), xds.CompareTypes)
}

// serve runs a stream. It also fits a service of one type, because only the messages and their handler
// depend on the protocol.
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
		number:     cp.opened,
		protocol:   protocol,
		metadata:   md,
		out:        newOutbox(),
		types:      make(map[string]*subscription),
		unanswered: make(map[[2]string]bool),
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

// classify returns the kind of a request, and removes its nonce from the unanswered ones. answered
// reports that the nonce was ACKed or NACKed before.
func (st *stream) classify(typeURL, nonce string, failed bool) (kind Kind, answered bool) {
	key := [2]string{typeURL, nonce}
	open := st.unanswered[key]
	delete(st.unanswered, key)
	switch {
	case failed:
		return Nack, !open
	case open:
		return Ack, false
	default:
		return Subscribe, nonce != ""
	}
}

// handleSotW processes a request as in protocol.md section 1.
func (cp *ControlPlane) handleSotW(st *stream, req *discoveryv3.DiscoveryRequest) {
	typeURL, nonce := req.GetTypeUrl(), req.GetResponseNonce()
	kind, answered := st.classify(typeURL, nonce, req.GetErrorDetail() != nil)
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
		return // 1.12: an ACK or NACK of an unsolicited response
	case !known:
		sub = newSubscription()
		st.types[typeURL] = sub
		sub.mustAnswer = true // 1.1
	case nonce != "" && nonce != sub.nonce:
		return // 1.6: stale
	}
	grew, changed := cp.updateNames(st, sub, typeURL, !known, req.GetResourceNames())
	repeated := typeURL == xds.EndpointType && kind == Subscribe && answered && !changed
	if grew || repeated {
		sub.mustAnswer = true // 1.5, 1.4
	}
	if !known && !sub.wildcard && len(sub.names) == 0 {
		sub.mustAnswer = false // 2.1: no subscription
	}
	cp.answer(st, typeURL)
}

// updateNames sets the names of a SotW subscription as in protocol.md section 2.
func (cp *ControlPlane) updateNames(st *stream, sub *subscription, typeURL string, first bool, names []string) (grew, changed bool) {
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
	sub.forgetUnsubscribed(cp.state[typeURL])
	return grew, changed
}

// handleDelta processes a request as in protocol.md section 3.
func (cp *ControlPlane) handleDelta(st *stream, req *discoveryv3.DeltaDiscoveryRequest) {
	typeURL, nonce := req.GetTypeUrl(), req.GetResponseNonce()
	kind, _ := st.classify(typeURL, nonce, req.GetErrorDetail() != nil)
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
			return // an ACK or NACK of an unsolicited response
		}
		sub = newSubscription()
		st.types[typeURL] = sub
		maps.Copy(sub.sent, req.GetInitialResourceVersions())
		if cp.config.ResendAll || cp.config.EmptyVersions {
			sub.forgetVersions()
		}
		if len(req.GetResourceNamesSubscribe()) == 0 && xds.Info(typeURL).LegacyWildcard {
			sub.wildcard, sub.mustAnswer = true, true // 2.1, 2.7
		}
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		if name == xds.Wildcard {
			sub.wildcard = false
		} else if delete(sub.names, name); sub.wildcard {
			sub.requested[name] = true // 2.5
		}
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == xds.Wildcard {
			sub.wildcard, sub.mustAnswer = true, true
			continue
		}
		sub.names[name] = true
		// 3.2: only a name with its current version needs no answer.
		if e := cp.state[typeURL][name]; known || e == nil || sub.sent[name] != e.version || typeURL == xds.EndpointType {
			sub.requested[name] = true
		}
	}
	if known {
		sub.forgetUnsubscribed(cp.state[typeURL])
	}
	cp.answer(st, typeURL)
}
