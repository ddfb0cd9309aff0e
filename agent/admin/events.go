package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// eventFilter returns the filter of GET /events, and whether events to come are wanted, too.
func eventFilter(v url.Values, now time.Time) (f events.Filter, follow bool, err error) {
	for key, values := range v {
		value := values[0]
		switch key {
		case "since":
			at, bad := ParseTime(value, now)
			err = errors.Join(err, bad)
			f.Since = at
		case "type":
			typeURL, bad := ParseType(value)
			err = errors.Join(err, bad)
			f.Type = xds.Short(typeURL)
		case "name":
			f.Name = value
		case "node":
			f.Node = value
		case "follow":
			follow, err = parseBool(key, value, err)
		default:
			err = errors.Join(err, fmt.Errorf("unknown parameter %q: want since, type, name, node or follow", key))
		}
	}
	return f, follow, err
}

// events answers with one JSON object a line or, to a browser that asks for it, with those that come as server-sent
// events (HTML standard, section 9.2), which it goes on with after a connection was lost.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	f, follow, err := eventFilter(r.URL.Query(), time.Now())
	if last := r.Header.Get("Last-Event-ID"); last != "" && err == nil {
		var at time.Time
		if at, err = time.Parse(time.RFC3339Nano, last); err == nil {
			f.Since = at.Add(1)
		}
	}
	if err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	write := json.NewEncoder(w).Encode
	if r.Header.Get("Accept") == "text/event-stream" {
		follow = true
		write = serverSent(w)
		header(w, "text/event-stream", http.StatusOK)
	} else {
		header(w, "application/x-ndjson", http.StatusOK)
	}
	if !follow {
		for _, e := range s.cfg.Events.Select(f) {
			if write(e) != nil {
				return // the client has disconnected
			}
		}
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-s.stopping: // the agent does not wait for the client
			cancel()
		case <-ctx.Done():
		}
	}()
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // until the client disconnects
	batch, follower := s.cfg.Events.Follow(f)
	defer follower.Close()
	for missed := 0; ; {
		if missed > 0 && write(events.Event{Time: time.Now().UTC(), Level: "WARN", Text: fmt.Sprintf("%d events are missing here, because they came too fast", missed)}) != nil {
			return
		}
		for _, e := range batch {
			if f.Admits(&e) && write(e) != nil {
				return
			}
		}
		if control.Flush() != nil {
			return
		}
		if batch, missed = follower.Next(ctx); len(batch) == 0 {
			return
		}
	}
}

// serverSent returns a function that writes an event.
func serverSent(w io.Writer) func(any) error {
	return func(v any) error {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		id := ""
		if e, ok := v.(events.Event); ok {
			id = "id: " + cmp.Or(e.Until, e.Time).UTC().Format(time.RFC3339Nano) + "\n"
		}
		_, err = fmt.Fprintf(w, "%sdata: %s\n\n", id, data)
		return err
	}
}

// ErrGone is that an agent ended while its events were followed.
var ErrGone = errors.New("has gone away")

// Events calls each with the events that a filter selects, the oldest first, and with follow with those to
// come, until ctx ends or the agent goes away, which is an error then.
func (c Client) Events(ctx context.Context, f events.Filter, follow bool, each func(events.Event) error) error {
	v := url.Values{}
	for key, value := range map[string]string{"type": f.Type, "name": f.Name, "node": f.Node} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if !f.Since.IsZero() {
		v.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	wait := connectTimeout
	if follow {
		v.Set("follow", strconv.FormatBool(follow))
		wait = 0
	}
	return c.request(ctx, http.MethodGet, "/events", v, wait, func(resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s to /events: %s", c.Addr, resp.Status, said(resp))
		}
		dec := json.NewDecoder(resp.Body)
		for {
			var e events.Event
			switch err := dec.Decode(&e); {
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, io.EOF) && follow, errors.Is(err, io.ErrUnexpectedEOF):
				return fmt.Errorf("the agent on %s %w", c.Addr, ErrGone)
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			}
			if err := each(e); err != nil {
				return err
			}
		}
	})
}
