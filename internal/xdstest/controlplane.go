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

// messageBytes bounds what either end accepts, as holdfast's own limit does.
const messageBytes = 256 << 20

// Config says how a ControlPlane differs from the usual one. The zero value is
// the usual one.
type Config struct {
	// EmptyVersions sends Delta resources without a version, as Istio does, so
	// that no initial_resource_versions ever matches.
	EmptyVersions bool
	// ResendAll answers a first request in full whatever the client says it has,
	// and every change with all that the client subscribes to, as Istio does.
	ResendAll bool
	// Identifier is what answers carry as control_plane.identifier.
	Identifier string
}

// ControlPlane is an ADS server with a desired state and a script. By itself it
// answers every request as protocol.md sections 1 to 3 say and pushes every
// change of the state, in push order. Versions count the changes of a resource
// ("1", "2", …) and, in SotW, of a type, so those of two servers collide.
//
// It does not repeat the endpoints of a cluster that changed (protocol.md 4.1):
// that is what holdfast is to make up for. Resend does it by hand.
type ControlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	config Config
	signal signal

	mu sync.Mutex
	// state is type URL → name → what is to be served.
	state map[string]map[string]*entry
	// issued counts the versions of each resource, typeIssued those of each type;
	// removing a resource does not start its count again.
	issued     map[[2]string]int
	typeIssued map[string]int
	nonces     int
	held       map[string]bool
	silent     bool
	refuse     bool
	streams    map[int]*stream
	opened     int
	events     []Event
	answers    []Answer
	// wildcardNodes holds the ids of the Envoys that had a wildcard of CDS in
	// SotW without asking for "*" (protocol.md 2.4).
	wildcardNodes map[string]bool

	// serving is what Stop ends; running counts the goroutines behind it.
	serving []*grpc.Server
	running sync.WaitGroup
}

// entry is one resource of the desired state.
type entry struct {
	// source is what Set was given, for telling whether it changed.
	source  *discoveryv3.Resource
	version string
	// onDemand says that no wildcard includes it.
	onDemand bool
}

// New returns a control plane with nothing in its state, serving nowhere.
func New(config Config) *ControlPlane {
	return &ControlPlane{
		config:        config,
		state:         make(map[string]map[string]*entry),
		issued:        make(map[[2]string]int),
		typeIssued:    make(map[string]int),
		held:          make(map[string]bool),
		streams:       make(map[int]*stream),
		wildcardNodes: make(map[string]bool),
	}
}

// Serve starts to serve on a listener, which it closes in Stop, and returns at
// once. It may be called again: for another listener, or after Stop, as a
// control plane that comes back with its state, its log and its versions.
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

// Stop closes all listeners and connections, as a process that is killed does,
// and returns when every goroutine has ended.
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

// Set puts resources into the desired state and pushes what changed. Each is a
// resource message, an *anypb.Any (of any type, bytes as they are) or a
// *discoveryv3.Resource: a wrapper with its own name, version, TTL or aliases.
// A wrapper without version gets one. It panics on a resource without a name.
func (cp *ControlPlane) Set(resources ...proto.Message) { cp.set(false, resources) }

// SetOnDemand does what Set does with resources that only those get who ask for
// them by name or alias: no wildcard includes them.
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
	if old := byName[w.GetName()]; old != nil && old.onDemand == onDemand && proto.Equal(old.source, w) {
		return typeURL, false
	}
	version := w.GetVersion()
	if version == "" {
		key := [2]string{typeURL, w.GetName()}
		cp.issued[key]++
		version = strconv.Itoa(cp.issued[key])
	}
	byName[w.GetName()] = &entry{source: w, version: version, onDemand: onDemand}
	return typeURL, true
}

// Remove takes resources out of the desired state and pushes that.
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

// Resend answers every subscription of the types once more, in full, although
// nothing changed. No types mean all.
func (cp *ControlPlane) Resend(typeURLs ...string) {
	cp.mu.Lock()
	for _, st := range cp.inOrder() {
		for _, typeURL := range st.subscribed() {
			if len(typeURLs) == 0 || slices.Contains(typeURLs, typeURL) {
				st.types[typeURL].distrust()
				st.types[typeURL].owed = true
				cp.answer(st, typeURL)
			}
		}
	}
	cp.mu.Unlock()
	cp.signal.raise()
}

// push answers every subscription of the changed types, in push order. Each
// change gives a type a new version for SotW.
func (cp *ControlPlane) push(changed map[string]bool) {
	types := slices.SortedFunc(maps.Keys(changed), xds.CompareTypes)
	for _, typeURL := range types {
		cp.typeIssued[typeURL]++
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

// Hold stops answering and pushing the types; no types mean all. Requests are
// still taken in and logged.
func (cp *ControlPlane) Hold(typeURLs ...string) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if len(typeURLs) == 0 {
		cp.silent = true
	}
	for _, typeURL := range typeURLs {
		cp.held[typeURL] = true
	}
}

// Release undoes Hold and sends what is due by then: the newest state, once. No
// types mean all, also those that were held by name.
func (cp *ControlPlane) Release(typeURLs ...string) {
	cp.mu.Lock()
	if len(typeURLs) == 0 {
		cp.silent = false
		clear(cp.held)
	}
	for _, typeURL := range typeURLs {
		delete(cp.held, typeURL)
	}
	for _, st := range cp.inOrder() {
		for _, typeURL := range st.subscribed() {
			cp.answer(st, typeURL)
		}
	}
	cp.mu.Unlock()
	cp.signal.raise()
}

// Silent holds or releases everything: a control plane that accepts streams and
// says nothing.
func (cp *ControlPlane) Silent(silent bool) {
	if silent {
		cp.Hold()
	} else {
		cp.Release()
	}
}

// Refuse makes new streams end with UNAVAILABLE, or no longer. Open ones stay.
func (cp *ControlPlane) Refuse(refuse bool) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.refuse = refuse
}

// Cut ends streams, after what was pushed to them so far: those numbered or,
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

// Nonce returns a nonce that was not used yet, for SendRaw.
func (cp *ControlPlane) Nonce() string {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return cp.nextNonce()
}

func (cp *ControlPlane) nextNonce() string {
	cp.nonces++
	return "n" + strconv.Itoa(cp.nonces)
}

// SendRaw sends a *discoveryv3.DiscoveryResponse or DeltaDiscoveryResponse as it
// is to one stream or, with stream 0, to every open stream of its protocol. It
// returns to how many. Of the answer only the nonce is remembered: the desired
// state, and what the client is taken to hold, stay. It panics on another type.
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

// Events returns everything that was asked so far. The caller must not change it.
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

// Answers returns everything that was sent so far, SendRaw's included. The
// caller must not change it.
func (cp *ControlPlane) Answers() []Answer {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return slices.Clip(cp.answers)
}

// Streams returns how many streams are open now and were opened ever.
func (cp *ControlPlane) Streams() (now, ever int) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return len(cp.streams), cp.opened
}

// Wait blocks until the condition holds, which is asked again whenever anything
// happens here and may call any method. Its error, when ctx ends first, quotes
// the newest events.
func (cp *ControlPlane) Wait(ctx context.Context, until func() bool) error {
	if err := cp.signal.wait(ctx, until); err != nil {
		return fmt.Errorf("control plane: %w; newest events:%s", err, tail(cp.Events()))
	}
	return nil
}

// Await blocks until an event matches, one of the past included, and returns the
// first that does.
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
