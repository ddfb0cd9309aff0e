package mesh

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// slow is the connection of a client that does not read until it is told to. A write deadline in the past ends it.
type slow struct {
	*httptest.ResponseRecorder
	read, cut chan struct{}
}

func newSlow() *slow {
	return &slow{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
}

func (s *slow) Write(p []byte) (int, error) {
	select {
	case <-s.read:
		return s.ResponseRecorder.Write(p)
	case <-s.cut:
		return 0, os.ErrDeadlineExceeded
	}
}

func (s *slow) SetWriteDeadline(time.Time) error {
	close(s.cut)
	return nil
}

// Clients that do not read what they have asked for hold no place: others are answered meanwhile, and the status is.
func TestAdmin_WhoReadsSlowlyHoldsNoPlace(t *testing.T) {
	e := newDoors(t, func(*Config) {})
	synctest.Test(t, func(t *testing.T) {
		e.doors.questions, e.doors.statuses = make(chan struct{}, maxQuestions), make(chan struct{}, maxQuestions) // of this bubble
		handler := e.adminHandler()
		ask := func(w http.ResponseWriter, path string) {
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		}
		var readers []*slow
		for range maxQuestions + 1 {
			for _, path := range []string{"/documents", "/metrics"} {
				reader := newSlow()
				readers = append(readers, reader)
				go ask(reader, path)
				synctest.Wait() // its answer is made
			}
		}
		for _, path := range []string{"/status", "/documents", "/proxies", "/metrics"} {
			w := httptest.NewRecorder()
			began := time.Now()
			if ask(w, path); w.Code != http.StatusOK || time.Since(began) != 0 {
				t.Errorf("%s: %d after %s: %s", path, w.Code, time.Since(began), w.Body)
			}
		}
		for range maxQuestions { // which are made
			e.doors.questions <- struct{}{}
		}
		for path, code := range map[string]int{"/status": http.StatusOK, "/documents": http.StatusServiceUnavailable} {
			w := httptest.NewRecorder()
			if ask(w, path); w.Code != code {
				t.Errorf("%s: %d beside questions that are answered", path, w.Code)
			}
		}
		for _, reader := range readers {
			close(reader.read)
		}
		synctest.Wait()
		for _, reader := range readers {
			if reader.Code != http.StatusOK || reader.Body.Len() == 0 {
				t.Errorf("%d %q to a slow reader", reader.Code, reader.Body)
			}
		}
	})
	if e.doors.answers.size != 0 || len(e.doors.answers.writing) != 0 {
		t.Errorf("%d bytes of %d answers are left", e.doors.answers.size, len(e.doors.answers.writing))
	}
}

// What nobody reads is bounded: the oldest answers are ended for new ones, of which one may be larger than the bound.
func TestAdmin_AnswersThatNobodyReadsAreBounded(t *testing.T) {
	e := newDoors(t, func(*Config) {})
	e.doors.answers.max = 100
	synctest.Test(t, func(t *testing.T) {
		places := make(chan struct{}, 1)
		ask := func(size int) *slow {
			w := newSlow()
			go e.one(places, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(strings.Repeat("x", size))) })(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
			synctest.Wait()
			return w
		}
		ended := func(w *slow) bool {
			select {
			case <-w.cut:
				return true
			default:
				return false
			}
		}
		first, second := ask(50), ask(50)
		if ended(first) || ended(second) || e.doors.answers.size != 100 {
			t.Errorf("there is room for both: %d bytes", e.doors.answers.size)
		}
		third := ask(20)
		if !ended(first) || ended(second) || e.doors.answers.size != 70 {
			t.Errorf("the oldest is ended: %d bytes", e.doors.answers.size)
		}
		large := ask(1000)
		if !ended(second) || !ended(third) || ended(large) || e.doors.answers.size != 1000 {
			t.Errorf("one that is larger than the bound is alone: %d bytes", e.doors.answers.size)
		}
		close(large.read)
		synctest.Wait()
		if large.Body.Len() != 1000 || e.doors.answers.size != 0 {
			t.Errorf("%d bytes are read, and %d left", large.Body.Len(), e.doors.answers.size)
		}
	})
	if n := testutil.ToFloat64(e.doors.refused.WithLabelValues(refusedSlow)); n != 3 {
		t.Errorf("%v ended", n)
	}
}

// A sender that does not send holds no place among the comparisons.
func TestAdmin_WhoSendsSlowlyHoldsNoComparison(t *testing.T) {
	e := newDoors(t, func(*Config) {})
	synctest.Test(t, func(t *testing.T) {
		e.doors.diffs, e.doors.bodies = make(chan struct{}, 1), make(chan struct{}, maxQuestions)
		handler := e.adminHandler()
		end := make(chan struct{})
		for range maxQuestions - 1 {
			go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/diff", never(end)))
		}
		synctest.Wait()
		began := time.Now()
		if a := asked(handler, "POST", "/diff", `{}`); a.Code != http.StatusNotFound || time.Since(began) != 0 { // no proxy is connected
			t.Errorf("%d after %s: %s", a.Code, time.Since(began), a.Body)
		}
		close(end)
	})
}

// never is a body that does not come until it is closed.
type never chan struct{}

func (n never) Read([]byte) (int, error) {
	<-n
	return 0, errors.New("closed")
}

// A comparison ends when its client has left, whatever it has to compare.
func TestDiff_EndsWithItsContext(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, _, err := readAll(ctx, map[string]string{"a.yaml": ""}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
