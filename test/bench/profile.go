package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
)

// profiling is where CPU profiles of a target go, if anywhere, and how long each is.
type profiling struct {
	dir     string
	seconds int
	log     io.Writer // is told what was not written
	name    string    // of the case and round
}

// begin takes a profile at an admin socket, from when somebody listens there, until
// end is called, which returns when that is over. One that is not whole then is lost.
func (p profiling) begin(admin string) (end func()) {
	if p.dir == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var taking sync.WaitGroup
	taking.Go(func() {
		err := p.take(ctx, admin)
		if ctx.Err() != nil {
			err = fmt.Errorf("the target was ended before -profile-seconds %d had passed", p.seconds)
		}
		if err != nil {
			fmt.Fprintf(p.log, "%s: no profile: %v\n", p.name, err)
		}
	})
	return func() { cancel(); taking.Wait() }
}

func (p profiling) take(ctx context.Context, admin string) error {
	resp, err := ask(ctx, admin, fmt.Sprintf("/debug/pprof/profile?seconds=%d", p.seconds))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, p.name+".pprof"), b, 0o644)
}
