package xdstest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// messageBytes bounds the messages that either end accepts, as holdfast's own limit does.
const messageBytes = 256 << 20

// Config configures how a ControlPlane deviates from the standard behavior.
type Config struct {
	// EmptyVersions sends Delta resources without a version, as Istio does, so that no
	// initial_resource_versions ever matches.
	EmptyVersions bool
	// ResendAll answers a first request completely, whatever versions the client has, and every change
	// with all subscribed resources, as Istio does.
	ResendAll bool
	// Identifier is the control_plane.identifier of responses.
	Identifier string
}

// ControlPlane is an ADS server with a desired state and a script. By itself it answers every request
// as in protocol.md sections 1 to 3, and pushes every change of the state in push order. Versions count
// the changes of a resource ("1", "2", …) and, in SotW, of a type, so those of two servers collide.
//
// It does not repeat the endpoints of a changed cluster (protocol.md 4.1), because holdfast must do
// that. Resend does it on request.
type ControlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	config Config
	signal signal

	mu sync.Mutex
	// state contains the desired resources by type URL and name.
	state map[string]map[string]*entry
	// versions counts the versions of each resource, and typeVersions those of each type; the counts
	// survive the removal of a resource.
	versions     map[[2]string]int
	typeVersions map[string]int
	nonces       int
	onHold       map[string]bool
	silent       bool
	refuse       bool
	streams      map[int]*stream
	opened       int
	events       []Event
	answers      []Answer
	// wildcardNodes contains the ids of the Envoys that had a wildcard of CDS in SotW without naming
	// "*" (protocol.md 2.4).
	wildcardNodes map[string]bool

	// serving are the servers that Stop ends; running counts their goroutines.
	serving []*grpc.Server
	running sync.WaitGroup
}

// entry is one resource of the desired state.
type entry struct {
	// resource is the argument of Set, which is compared to detect changes.
	resource *discoveryv3.Resource
	version  string
	// onDemand excludes the resource from wildcards.
	onDemand bool
}

// New returns a control plane with an empty state and without listeners.
func New(config Config) *ControlPlane {
	return &ControlPlane{
		config:        config,
		state:         make(map[string]map[string]*entry),
		versions:      make(map[[2]string]int),
		typeVersions:  make(map[string]int),
		onHold:        make(map[string]bool),
		streams:       make(map[int]*stream),
		wildcardNodes: make(map[string]bool),
	}
}

// Serve starts to serve on a listener, which Stop closes, and returns immediately. It may be called
// again: for another listener, or after Stop to model a restarted control plane with the same state,
// records and versions.
func (cp *ControlPlane) Serve(lis net.Listener, opts ...grpc.ServerOption) {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(messageBytes),
		grpc.WaitForHandlers(true),
	}, opts...)...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, cp)
	cp.mu.Lock()
	cp.serving = append(cp.serving, server)
	cp.mu.Unlock()
	cp.running.Go(func() {
		// It fails when the listener does, which Stop causes.
		_ = server.Serve(lis)
	})
}

// Stop closes all listeners and connections, like a killed process, and returns when every goroutine
// has ended.
func (cp *ControlPlane) Stop() {
	cp.mu.Lock()
	serving := cp.serving
	cp.serving = nil
	cp.mu.Unlock()
	for _, server := range serving {
		server.Stop()
	}
	cp.running.Wait()
}

// Set adds resources to the desired state and pushes the changes. Each is a resource message, an
// *anypb.Any (of any type, used unchanged) or a *discoveryv3.Resource: a wrapper with its own name,
// version, TTL or aliases. A wrapper without a version gets one. It panics on a resource without a
// name.
func (cp *ControlPlane) Set(resources ...proto.Message) { cp.set(false, resources) }

// SetOnDemand is Set for resources that are excluded from wildcards: clients must request them by name
// or alias.
func (cp *ControlPlane) SetOnDemand(resources ...proto.Message) { cp.set(true, resources) }

func (cp *ControlPlane) set(onDemand bool, resources []proto.Message) {
	cp.mu.Lock()
	changed := make(map[string]bool)
	for _, m := range resources {
		if typeURL, ok := cp.put(m, onDemand); ok {
			changed[typeURL] = true
		}
	}
	cp.push(changed)
	cp.mu.Unlock()
	cp.signal.raise()
}

func (cp *ControlPlane) put(m proto.Message, onDemand bool) (typeURL string, changed bool) {
	w, ok := m.(*discoveryv3.Resource)
	if ok {
		w = proto.CloneOf(w)
	} else {
		w = Wrap(m, "")
	}
	typeURL = w.GetResource().GetTypeUrl()
	if typeURL == "" || w.GetName() == "" {
		panic(fmt.Sprintf("xdstest: Set: resource %q of type %q: want a name and a type", w.GetName(), typeURL))
	}
	byName := cp.state[typeURL]
	if byName == nil {
		byName = make(map[string]*entry)
		cp.state[typeURL] = byName
	}
	if old := byName[w.GetName()]; old != nil && old.onDemand == onDemand && proto.Equal(old.resource, w) {
		return typeURL, false
	}
	version := w.GetVersion()
	if version == "" {
		key := [2]string{typeURL, w.GetName()}
		cp.versions[key]++
		version = strconv.Itoa(cp.versions[key])
	}
	byName[w.GetName()] = &entry{resource: w, version: version, onDemand: onDemand}
	return typeURL, true
}

// Remove removes resources from the desired state and pushes the change.
func (cp *ControlPlane) Remove(typeURL string, names ...string) {
	cp.mu.Lock()
	changed := make(map[string]bool)
	for _, name := range names {
		if _, ok := cp.state[typeURL][name]; ok {
			delete(cp.state[typeURL], name)
			changed[typeURL] = true
		}
	}
	cp.push(changed)
	cp.mu.Unlock()
	cp.signal.raise()
}

// Names returns the names of the desired state, by type URL.
func (cp *ControlPlane) Names() map[string][]string {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	out := make(map[string][]string)
	for typeURL, of := range cp.state {
		out[typeURL] = slices.Sorted(maps.Keys(of))
	}
	return out
}

// Resend answers every subscription of the types again, completely, although nothing has changed. No
// types mean all.
func (cp *ControlPlane) Resend(typeURLs ...string) {
	cp.mu.Lock()
	for _, st := range cp.inOrder() {
		for _, typeURL := range st.subscribed() {
			if len(typeURLs) == 0 || slices.Contains(typeURLs, typeURL) {
				st.types[typeURL].forgetVersions()
				st.types[typeURL].mustAnswer = true
				cp.answer(st, typeURL)
			}
		}
	}
	cp.mu.Unlock()
	cp.signal.raise()
}

// push answers every subscription of the changed types, in push order. Each change gives a type a new
// version for SotW.
func (cp *ControlPlane) push(changed map[string]bool) {
	types := slices.SortedFunc(maps.Keys(changed), xds.CompareTypes)
	for _, typeURL := range types {
		cp.typeVersions[typeURL]++
	}
	for _, st := range cp.inOrder() {
		for _, typeURL := range types {
			cp.answer(st, typeURL)
		}
	}
}

func (cp *ControlPlane) inOrder() []*stream {
	return slices.SortedFunc(maps.Values(cp.streams), func(a, b *stream) int { return a.number - b.number })
}

// Hold stops responses and pushes of the types; no types mean all. Requests are still processed and
// recorded.
func (cp *ControlPlane) Hold(typeURLs ...string) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if len(typeURLs) == 0 {
		cp.silent = true
	}
	for _, typeURL := range typeURLs {
		cp.onHold[typeURL] = true
	}
}

// Release ends Hold and sends the newest state once. No types mean all, including those that were named
// for Hold.
func (cp *ControlPlane) Release(typeURLs ...string) {
	cp.mu.Lock()
	if len(typeURLs) == 0 {
		cp.silent = false
		clear(cp.onHold)
	}
	for _, typeURL := range typeURLs {
		delete(cp.onHold, typeURL)
	}
	for _, st := range cp.inOrder() {
		for _, typeURL := range st.subscribed() {
			cp.answer(st, typeURL)
		}
	}
	cp.mu.Unlock()
	cp.signal.raise()
}

// Silent holds or releases everything: a control plane that accepts streams but sends nothing.
func (cp *ControlPlane) Silent(silent bool) {
	if silent {
		cp.Hold()
	} else {
		cp.Release()
	}
}

// Refuse sets whether new streams end with UNAVAILABLE. Open streams stay.
func (cp *ControlPlane) Refuse(refuse bool) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.refuse = refuse
}

// Cut ends streams after the responses that were queued so far: those with the given numbers or,
// without numbers, all. err is the status, nil for UNAVAILABLE.
func (cp *ControlPlane) Cut(err error, streams ...int) {
	if err == nil {
		err = status.Error(codes.Unavailable, "stream cut by the script")
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	for _, st := range cp.inOrder() {
		if len(streams) == 0 || slices.Contains(streams, st.number) {
			st.out.put(outgoing{err: err})
		}
	}
}

// Nonce returns an unused nonce, for SendRaw.
func (cp *ControlPlane) Nonce() string {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return cp.nextNonce()
}

func (cp *ControlPlane) nextNonce() string {
	cp.nonces++
	return "n" + strconv.Itoa(cp.nonces)
}

// SendRaw sends a *discoveryv3.DiscoveryResponse or DeltaDiscoveryResponse unchanged to one stream or,
// with stream 0, to every open stream of its protocol, and returns the number of streams. It records
// only the nonce: the desired state, and the assumed state of the client, do not change. It panics on
// another type.
func (cp *ControlPlane) SendRaw(stream int, response proto.Message) int {
	protocol := SotW
	typeURL, nonce := "", ""
	switch r := response.(type) {
	case *discoveryv3.DiscoveryResponse:
		typeURL, nonce = r.GetTypeUrl(), r.GetNonce()
	case *discoveryv3.DeltaDiscoveryResponse:
		protocol, typeURL, nonce = Delta, r.GetTypeUrl(), r.GetNonce()
	default:
		panic(fmt.Sprintf("xdstest: SendRaw: %T is no response", response))
	}
	cp.mu.Lock()
	sent := 0
	for _, st := range cp.inOrder() {
		if st.protocol == protocol && (stream == 0 || stream == st.number) {
			cp.send(st, typeURL, nonce, response)
			sent++
		}
	}
	cp.mu.Unlock()
	cp.signal.raise()
	return sent
}

// Events returns all requests so far. The caller must not modify it.
func (cp *ControlPlane) Events() []Event {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return slices.Clip(cp.events)
}

// Requests returns the events of one type.
func (cp *ControlPlane) Requests(typeURL string) []Event {
	var of []Event
	for _, e := range cp.Events() {
		if e.Type == typeURL && e.Kind != Opened && e.Kind != Closed {
			of = append(of, e)
		}
	}
	return of
}

// Answers returns all responses so far, including those of SendRaw. The caller must not modify it.
func (cp *ControlPlane) Answers() []Answer {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return slices.Clip(cp.answers)
}

// Streams returns the number of open streams, and of all streams so far.
func (cp *ControlPlane) Streams() (now, ever int) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return len(cp.streams), cp.opened
}

// Wait blocks until the condition holds. It evaluates the condition again after each event of the
// control plane; the condition may call any method. If ctx ends first, the error quotes the last
// events.
func (cp *ControlPlane) Wait(ctx context.Context, until func() bool) error {
	if err := cp.signal.wait(ctx, until); err != nil {
		return fmt.Errorf("control plane: %w; newest events:%s", err, tail(cp.Events()))
	}
	return nil
}

// Await blocks until an event matches, which may be a past one, and returns the first match.
func (cp *ControlPlane) Await(ctx context.Context, matches func(Event) bool) (Event, error) {
	var found Event
	seen := 0
	err := cp.Wait(ctx, func() bool {
		events := cp.Events()
		i := slices.IndexFunc(events[seen:], matches)
		if i < 0 {
			seen = len(events)
			return false
		}
		found = events[seen+i]
		return true
	})
	return found, err
}

// tail renders the last lines of a log for an error.
func tail[E fmt.Stringer](log []E) string {
	const lines = 10
	if len(log) == 0 {
		return " none"
	}
	s := ""
	for _, e := range log[max(0, len(log)-lines):] {
		s += "\n\t" + e.String()
	}
	return s
}

// StreamAggregatedResources serves ADS in SotW.
func (cp *ControlPlane) StreamAggregatedResources(s grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	return cp.serve(s, SotW)
}

// DeltaAggregatedResources serves ADS in Delta.
func (cp *ControlPlane) DeltaAggregatedResources(s grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	return cp.serve(s, Delta)
}
