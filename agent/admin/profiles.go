package admin

import (
	"fmt"
	"net/http"
	"net/http/pprof"
)

// checkPprof reports why the profiles of Config.Pprof cannot be served where the
// admin surface is. Whoever fetches one makes the agent work for it, and learns what runs
// in it: that is for those whom a socket lets in.
func checkPprof(admin string) error {
	if _, unix := socketPath(admin); unix {
		return nil
	}
	return fmt.Errorf("--pprof: profiles are served on a Unix socket only, and --admin is %q: give --admin unix:PATH, or leave --pprof out", admin)
}

// profiles adds Go's profiles, which stretch the write timeout by their seconds, but not
// the command line, where there may be tokens in headers. (The package also adds them to
// http.DefaultServeMux, which nothing here serves.)
func profiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and those that have a name: heap, goroutine, …
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}
