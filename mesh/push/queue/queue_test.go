package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// TestTranscripts plays the transcripts of testdata/queue.txt, with a throttle of 10:
//
//	throttle N               starts over with this throttle
//	enqueue P full NAME      a full request for the document; "enqueue P endpoints HOST": for the service
//	next                     takes the next proxy
//	done P, remove P         the proxy was served; it disconnected
//	after D                  time passes
//	pending                  prints the length of the queue
//	same P Q                 takes both proxies and compares their requests
func TestTranscripts(t *testing.T) {
	for _, tr := range xdstest.Transcripts(t, "testdata/queue.txt") {
		t.Run(tr.Title, func(t *testing.T) {
			tk := &talk{now: time.Unix(0, 0), q: New[string](10), requests: map[string]*push.Request{}}
			tr.Play(t, tk.play)
		})
	}
}

type talk struct {
	q   *Queue[string]
	now time.Time
	// requests has the request of each kind and name: the same one for all proxies.
	requests map[string]*push.Request
}

func (tk *talk) play(words []string) ([]string, error) {
	switch words[0] {
	case "throttle":
		n, err := strconv.Atoi(words[1])
		tk.q = New[string](n)
		return nil, err
	case "enqueue":
		tk.q.Enqueue(tk.now, words[1], tk.request(words[2], words[3]))
	case "next":
		e, ok := tk.q.Next()
		if !ok {
			return []string{"none"}, nil
		}
		return []string{fmt.Sprintf("%s %s waited %s", e.Proxy, text(e.Request), tk.now.Sub(e.Since))}, nil
	case "done":
		tk.q.MarkDone(words[1])
	case "remove":
		tk.q.Remove(words[1])
	case "after":
		d, err := time.ParseDuration(words[1])
		tk.now = tk.now.Add(d)
		return nil, err
	case "pending":
		return []string{fmt.Sprintf("%d waiting", tk.q.Pending()), fmt.Sprintf("%d served", tk.q.Serving())}, nil
	case "same":
		a, _ := tk.q.Next()
		b, _ := tk.q.Next()
		if a.Proxy == words[1] && b.Proxy == words[2] && a.Request == b.Request && a.Request != nil {
			return []string{"the same request"}, nil
		}
		return []string{"different requests"}, nil
	default:
		return nil, fmt.Errorf("no command %q", words)
	}
	return nil, nil
}

func (tk *talk) request(kind, name string) *push.Request {
	r := tk.requests[kind+name]
	if r == nil {
		if kind == "full" {
			r = &push.Request{Full: true, Configs: map[config.Key]struct{}{{Name: name}: {}}}
		} else {
			r = &push.Request{Services: map[push.ServiceKey]struct{}{{Hostname: service.Hostname(name)}: {}}}
		}
		tk.requests[kind+name] = r
	}
	return r
}

func text(r *push.Request) string {
	var configs, services []string
	for key := range r.Configs {
		configs = append(configs, key.Name)
	}
	for key := range r.Services {
		services = append(services, string(key.Hostname))
	}
	slices.Sort(configs)
	slices.Sort(services)
	kind := "endpoints"
	if r.Full {
		kind = "full"
	}
	return strings.Join(slices.Concat([]string{kind}, configs, services), " ")
}

// A random run against a model: counters of what each proxy was sent and has got.
func TestNoRequestIsLostAndNoProxyIsServedTwiceAtOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		throttle, proxies := 1+r.IntN(4), 1+r.IntN(8)
		q := New[int](throttle)
		due, serving := make([]int, proxies), make([]bool, proxies)
		served := 0
		serve := func() {
			e, ok := q.Next()
			if !ok {
				if served < throttle && q.Pending() > 0 {
					t.Fatalf("%d of %d are served, %d wait, and none is next", served, throttle, q.Pending())
				}
				return
			}
			if served++; serving[e.Proxy] || served > throttle {
				t.Fatalf("proxy %d is next; it is served already: %v; %d of %d are", e.Proxy, serving[e.Proxy], served, throttle)
			}
			if got := e.Request.Reasons[push.ConfigUpdate]; got != due[e.Proxy] || got == 0 {
				t.Fatalf("proxy %d gets %d of %d requests", e.Proxy, got, due[e.Proxy])
			}
			serving[e.Proxy], due[e.Proxy] = true, 0
		}
		finish := func(p int) {
			if q.MarkDone(p); serving[p] {
				serving[p] = false
				served--
			}
		}
		for range 300 {
			switch p := r.IntN(proxies); r.IntN(8) {
			case 0, 1, 2:
				q.Enqueue(time.Time{}, p, &push.Request{Reasons: map[push.Reason]int{push.ConfigUpdate: 1}})
				due[p]++
			case 3, 4:
				serve()
			case 5, 6:
				finish(p)
			case 7:
				q.Remove(p)
				due[p] = 0
			}
		}
		for range 2 * proxies { // what came during service goes in at its end
			serve()
			for p := range proxies {
				finish(p)
			}
		}
		if slices.Max(due) > 0 || q.Pending() > 0 || q.Serving() > 0 {
			t.Fatalf("%v requests are left, %d proxies wait, %d are served", due, q.Pending(), q.Serving())
		}
	}
}
