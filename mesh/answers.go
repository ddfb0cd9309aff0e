package mesh

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxUnread bounds the answers that clients have not read yet, in bytes: what four large meshes have of documents.
const maxUnread = 64 << 20

// answers are the answers of the admin that are being written. They are in memory, so that who reads slowly holds no place among those
// who are answered; and they are bounded: an answer for which there is no room ends those that have been written for the longest. Methods may be called concurrently.
type answers struct {
	max int // in bytes

	mu      sync.Mutex
	size    int
	writing []*answer // oldest first
}

// answer is one that is being written.
type answer struct {
	size int
	end  func() // makes the client's connection fail; called with answers.mu held, and not after remove
}

// add adds an answer, and ends the oldest ones until there is room for it. One that is larger than the bound is written beside no other.
func (a *answers) add(one *answer) (ended int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.writing) > 0 && a.size+one.size > a.max {
		oldest := a.writing[0]
		a.size, a.writing = a.size-oldest.size, a.writing[1:]
		oldest.end()
		ended++
	}
	a.size, a.writing = a.size+one.size, append(a.writing, one)
	return ended
}

func (a *answers) remove(one *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.writing, one); i >= 0 {
		a.size, a.writing = a.size-one.size, slices.Delete(a.writing, i, i+1)
	}
}

// rendered is an answer that is made in memory: an http.ResponseWriter.
type rendered struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *rendered) Header() http.Header { return r.header }

func (r *rendered) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
}

func (r *rendered) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

// render returns the answer of a handler.
func render(handler http.HandlerFunc, r *http.Request) *rendered {
	w := &rendered{header: make(http.Header)}
	handler(w, r)
	w.WriteHeader(http.StatusOK)
	return w
}

// write writes an answer to its client, for as long as there is room for it.
func (e *Environment) write(w http.ResponseWriter, r *rendered) {
	maps.Copy(w.Header(), r.header)
	connection := http.NewResponseController(w)
	one := &answer{size: r.body.Len(), end: func() {
		_ = connection.SetWriteDeadline(time.Now()) // a test's writer has none
	}}
	if ended := e.doors.answers.add(one); ended > 0 {
		e.doors.refused.WithLabelValues(refusedSlow).Add(float64(ended))
	}
	defer e.doors.answers.remove(one)
	w.WriteHeader(r.code)
	_, _ = r.body.WriteTo(w) // the client went away
}
