package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// ready fails unless the conditions are these: name to part of the reason, "" for
// one that holds.
func (r *rig) ready(want map[string]string) {
	r.Helper()
	got := r.agent.Ready()
	if len(got) != len(want) {
		r.Errorf("conditions %+v", got)
	}
	for _, c := range got {
		reason, ok := want[c.Name]
		if !ok || c.OK != (reason == "") || c.OK != (c.Reason == "") || !strings.Contains(c.Reason, reason) {
			r.Errorf("%+v, want the reason %q", c, reason)
		}
	}
}

func TestReadinessSaysWhatIsMissing(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.make()
		r.ready(map[string]string{"socket": "not listening on xds.sock", "configuration": "no client has connected"})
		r.start()
		r.quiet()
		r.ready(map[string]string{"socket": "", "configuration": "give --bootstrap, or --node-id and --node-cluster, or start Envoy"})
		r.cp.Refuse(true)
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		r.quiet()
		r.ready(map[string]string{"socket": "", "configuration": "no CDS received yet for node web-1; upstream " + upstreamAddr + ": receiving: rpc error: code = Unavailable desc = stream refused by the script"})
		r.cp.Refuse(false)
		r.cp.Hold(xds.ListenerType)
		r.pass(time.Minute)
		r.ready(map[string]string{"socket": "", "configuration": "no LDS received yet for node web-1"})
		c.Subscribe(xds.ListenerType)
		r.cp.Release()
		r.quiet()
		r.ready(map[string]string{"socket": "", "configuration": ""})
		// What is held is served: an upstream that goes away changes nothing.
		r.cp.Stop()
		r.pass(time.Hour)
		r.ready(map[string]string{"socket": "", "configuration": ""})
		// One kind of client is enough.
		r.client(xdstest.ClientConfig{Node: node("another")}).Subscribe(xds.ClusterType)
		r.quiet()
		r.ready(map[string]string{"socket": "", "configuration": ""})
		r.stop()
		r.ready(map[string]string{"socket": "not listening on xds.sock", "configuration": ""})
	})
}

func TestASilentUpstreamIsAReason(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cp.Silent(true)
		r.cfg.Node = node("web-1")
		r.start()
		r.pass(time.Minute)
		r.ready(map[string]string{"socket": "", "configuration": "no CDS received yet for node web-1; upstream " + upstreamAddr + ": no answer for 15s"})
	})
}

func TestStatusAndDumpTellWhatWasRejectedAndWhatIsServedInstead(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.start()
		bad := xdstest.Listener("bad", 1, "r1")
		accept := true
		c := r.client(xdstest.ClientConfig{Node: node("web-1"), Manual: true})
		c.Subscribe(xds.ListenerType)
		answer := func() {
			r.quiet()
			all := c.Of(xds.ListenerType)
			if last := all[len(all)-1]; accept {
				c.Ack(last)
			} else {
				c.Nack(last, "malformed IP address", "bad")
			}
			r.quiet()
		}
		answer()
		r.cp.Set(bad)
		answer()
		good := row(r, "bad")
		if good.Standing != xds.Acked || good.Reason != "" || good.GoodVersion != "" || good.Good != nil || good.Group != "web-1" || good.Source != upstreamAddr {
			r.Fatalf("accepted: %+v", good)
		}
		accept = false
		r.cp.Set(xdstest.BadListener("bad"))
		answer()
		got := row(r, "bad")
		if got.Standing != xds.Nacked || !strings.Contains(got.Reason, "malformed IP address") {
			r.Errorf("rejected: %+v", got)
		}
		if got.Version == good.Version || got.GoodVersion != good.Version || !bytes.Equal(got.Good.GetValue(), xdstest.Pack(bad).GetValue()) {
			r.Errorf("good: %s, want %s; %+v", got.GoodVersion, good.Version, got)
		}
		if other := row(r, "l1"); other.Standing != xds.Acked {
			r.Errorf("its neighbour: %+v", other)
		}
		st := r.agent.Status()
		if len(st.Groups) != 1 || len(st.Streams) != 1 || st.Version != "test" || st.Streams[0].NodeID != "web-1" {
			r.Errorf("status %+v", st)
		}
		for _, row := range st.Groups[0].Types {
			if row.Type == "LDS" && row.Resources[xds.Nacked.String()] != 1 {
				r.Errorf("LDS: %+v", row)
			}
		}
	})
}

// row returns the listener of a name as dump shows it.
func row(r *rig, name string) admin.Resource {
	r.Helper()
	for res := range r.agent.Resources(admin.Filter{Type: xds.ListenerType, Name: name}) {
		return res
	}
	r.Fatalf("%s is not in the dump", name)
	return admin.Resource{}
}

// recorded is a log. look, if set, is called with each line first.
type recorded struct {
	look func(line string)
	mu   sync.Mutex
	text strings.Builder
}

func (l *recorded) Write(p []byte) (int, error) {
	if l.look != nil {
		l.look(string(p))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *recorded) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The streams of clients are cut first; upstream goes on until they are.
func TestClientsAreCutBeforeTheUpstream(t *testing.T) {
	inBothForms(t, func(r *rig) {
		open := -1
		log := &recorded{look: func(line string) {
			if strings.Contains(line, `msg="stream closed"`) {
				time.Sleep(time.Second) // what ends by itself would have ended
				open, _ = r.cp.Streams()
			}
		}}
		r.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		r.start()
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		r.pass(2 * time.Second)
		r.stop()
		if open != 1 {
			r.Errorf("%d upstream streams when the client was cut, want 1", open)
		}
		r.quiet()
		r.streams(0, 1)
		if c.Err() == nil {
			r.Error("the client was not cut")
		}
		text := log.String()
		if !strings.HasSuffix(text, "level=INFO msg=stopped\n") {
			r.Errorf("it ends with %s", text[max(0, len(text)-200):])
		}
	})
}
