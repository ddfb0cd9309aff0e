package events

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// Handler returns a handler that passes records on to another one and makes those of Info and above
// events, also if the other one's level is higher.
func (l *Log) Handler(next slog.Handler) slog.Handler {
	l.plain = slog.New(next)
	return &handler{next: next, log: l}
}

type handler struct {
	next slog.Handler
	log  *Log
	// attrs are those of With, with their groups as prefixes of the keys.
	attrs []slog.Attr
	group string
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		h.log.Record(h.event(r))
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func (h *handler) event(r slog.Record) Event {
	e := Event{Time: r.Time, Level: r.Level.String(), Text: r.Message}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	add := func(a slog.Attr) bool {
		value := bounded(a.Value.Resolve().String())
		switch a.Key {
		case "node":
			e.Node = value
		case "type":
			e.Type = value
		case "name":
			e.Name = value
		default:
			if a.Key == "" || value == "" {
				return true
			}
			e.Details = append(e.Details, Detail{a.Key, value})
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(func(a slog.Attr) bool {
		a.Key = h.group + a.Key
		return add(a)
	})
	return e
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.next, out.attrs = h.next.WithAttrs(attrs), slices.Clip(h.attrs)
	for _, a := range attrs {
		a.Key = h.group + a.Key
		out.attrs = append(out.attrs, a)
	}
	return &out
}

func (h *handler) WithGroup(name string) slog.Handler {
	out := *h
	out.next, out.group = h.next.WithGroup(name), h.group+name+"."
	return &out
}
