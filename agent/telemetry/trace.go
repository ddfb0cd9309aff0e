package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// The names of the spans and of their events. An update's span lasts from the receipt of a response of a
// source until every client that it concerned has answered. Each response in which a client was sent it is
// a child that lasts from when the response began to be built until the client's answer.
const (
	updateSpan   = "xds.update"
	pushSpan     = "xds.push"
	appliedEvent = "applied" // the update has taken effect
	sentEvent    = "sent"    // the response was handed to the transport
)

// scope is the name of the instrumentation.
const scope = "github.com/holdfast-xds/holdfast/agent/telemetry"

// maxNamed is the number of resources up to which their names are in the span.
const maxNamed = 5

// maxInFlight bounds the open spans of a type of one client.
const maxInFlight = 128

// Tracer returns a tracer for the clients of a node; nil if traces are not exported.
func (t *Telemetry) Tracer(node string) group.Tracer {
	if t == nil || t.traces == nil {
		return nil
	}
	return NewTracer(t.traces, node)
}

// NewTracer returns a tracer for the clients of a node whose spans the provider exports.
func NewTracer(provider trace.TracerProvider, node string) group.Tracer {
	return &tracer{spans: provider.Tracer(scope), node: node, updates: make(map[string][]*update)}
}

// tracer traces the updates of one group.
type tracer struct {
	spans trace.Tracer
	node  string

	mu sync.Mutex // also of its updates and clients
	// updates has, by type, those that are numbered and not answered, by revision.
	updates map[string][]*update
}

// TakeLocks takes and releases the lock, for a watchdog.
func (t *tracer) TakeLocks() { watchdog.Lock(&t.mu) }

type update struct {
	t        *tracer
	typeURL  string
	ctx      context.Context // has the span: the parent of others
	span     trace.Span
	revision uint64
	applied  bool
	// answeredAt is when the update was answered, for the first time; the zero time for not yet. The span
	// ends then, or when the update is applied, if that is later.
	answeredAt time.Time
}

func (t *tracer) Received(u xds.Update) group.UpdateTrace {
	attributes := []attribute.KeyValue{
		attribute.String("xds.type", xds.Short(u.Type)), attribute.String("xds.node.id", t.node),
		attribute.String("holdfast.upstream", redact.MaskURL(u.Source)),
		attribute.Int("xds.resources", len(u.Resources)), attribute.Int("xds.removed", len(u.Removed)),
	}
	if n := len(u.Errors); n > 0 {
		attributes = append(attributes, attribute.Int("xds.errors", n))
	}
	if names := namesOf(u.Resources, u.Removed); len(names) > 0 {
		attributes = append(attributes, attribute.StringSlice("xds.names", names))
	}
	options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributes...)}
	if !u.ReceivedAt.IsZero() {
		options = append(options, trace.WithTimestamp(u.ReceivedAt))
	}
	out := &update{t: t, typeURL: u.Type}
	out.ctx, out.span = t.spans.Start(context.Background(), updateSpan, options...)
	return out
}

// namesOf returns the names of resources and removals; none if there are many.
func namesOf(resources []*xds.Resource, removed []string) []string {
	if len(resources)+len(removed) > maxNamed {
		return nil
	}
	names := make([]string, 0, maxNamed)
	for _, r := range resources {
		names = append(names, r.Name)
	}
	return append(names, removed...)
}

func (u *update) Numbered(revision uint64) {
	u.t.mu.Lock()
	defer u.t.mu.Unlock()
	u.revision = revision
	u.t.updates[u.typeURL] = append(u.t.updates[u.typeURL], u)
}

func (u *update) Applied() {
	u.span.AddEvent(appliedEvent)
	u.t.mu.Lock()
	defer u.t.mu.Unlock()
	u.applied = true
	if !u.answeredAt.IsZero() {
		u.span.End()
	}
}

func (u *update) Answered(nack error) {
	u.t.mu.Lock()
	defer u.t.mu.Unlock()
	if !u.answeredAt.IsZero() {
		return
	}
	u.answeredAt = time.Now()
	u.t.updates[u.typeURL] = slices.DeleteFunc(u.t.updates[u.typeURL], func(o *update) bool { return o == u })
	if nack != nil {
		u.span.SetStatus(codes.Error, nack.Error())
	}
	if u.applied {
		u.span.End(trace.WithTimestamp(u.answeredAt))
	}
}

// client traces what one client is sent.
type client struct {
	t          *tracer
	attributes []attribute.KeyValue
	// sent has, by type, the revision of the last response, and inFlight the responses without an answer, the
	// oldest first.
	sent     map[string]uint64
	inFlight map[string][]push
}

type push struct {
	nonce string
	span  trace.Span
}

func (t *tracer) Connected(c downstream.Client) group.ClientTrace {
	return &client{
		t: t, sent: make(map[string]uint64), inFlight: make(map[string][]push),
		attributes: []attribute.KeyValue{
			attribute.String("xds.node.id", c.Node.GetId()), attribute.String("xds.form", c.Form.String()),
			attribute.Int64("holdfast.stream", int64(c.Stream)),
		},
	}
}

// Sent begins the span of a response that is about an update. A response has what several updates changed
// if the client was slow: it is a child of the newest, and has links to the others.
func (c *client) Sent(resp *session.Response, began time.Time) {
	if resp.Revision == 0 {
		return
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	var parent *update
	var links []trace.Link
	for _, u := range c.t.updates[resp.Type] {
		if u.revision <= c.sent[resp.Type] || u.revision > resp.Revision {
			continue
		}
		if parent != nil {
			links = append(links, trace.Link{SpanContext: parent.span.SpanContext()})
		}
		parent = u
	}
	c.sent[resp.Type] = max(c.sent[resp.Type], resp.Revision)
	if parent == nil {
		return // the client is new, or a changed cluster makes its endpoints due again
	}
	attributes := append(slices.Clip(c.attributes), attribute.String("xds.type", xds.Short(resp.Type)), attribute.String("xds.nonce", resp.Nonce),
		attribute.Int("xds.resources", len(resp.Resources)), attribute.Int("xds.removed", len(resp.Removed)))
	if names := namesOf(resp.Resources, resp.Removed); len(names) > 0 {
		attributes = append(attributes, attribute.StringSlice("xds.names", names))
	}
	_, span := c.t.spans.Start(parent.ctx, pushSpan, trace.WithTimestamp(began), trace.WithLinks(links...),
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
	span.AddEvent(sentEvent)
	waiting := append(c.inFlight[resp.Type], push{resp.Nonce, span})
	if len(waiting) > maxInFlight {
		waiting[0].supersede()
		waiting = waiting[1:]
	}
	c.inFlight[resp.Type] = waiting
}

func (c *client) Answered(a session.Answer) {
	if a.Nonce == "" {
		return
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	waiting := c.inFlight[a.Type]
	i := slices.IndexFunc(waiting, func(p push) bool { return p.nonce == a.Nonce })
	if i < 0 {
		return
	}
	for _, p := range waiting[:i] {
		p.supersede()
	}
	if a.NACK {
		waiting[i].span.SetStatus(codes.Error, a.Error)
	}
	waiting[i].span.End()
	c.inFlight[a.Type] = waiting[i+1:]
}

// supersede ends the span of a response that the client does not answer, because it answered a later one.
func (p push) supersede() {
	p.span.SetAttributes(attribute.Bool("holdfast.superseded", true))
	p.span.End()
}

func (c *client) Closed() {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	for _, waiting := range c.inFlight {
		for _, p := range waiting {
			p.span.SetStatus(codes.Error, "the stream ended before an answer")
			p.span.End()
		}
	}
	clear(c.inFlight)
}
