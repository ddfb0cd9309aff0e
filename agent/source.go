package agent

import (
	"fmt"
	"strings"

	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// source makes one upstream of its address.
func (a *Agent) source(addr string) (upstream.Source, error) {
	if dir, ok := strings.CutPrefix(addr, "file:"); ok {
		if dir == "" {
			return nil, fmt.Errorf("upstream %q: the directory is missing", addr)
		}
		return file.New(file.Config{Dir: dir, Logger: a.cfg.Log}), nil
	}
	conf := a.cfg.Upstream
	conf.Addr = addr
	if strings.HasPrefix(addr, "http://") || strings.HasPrefix(addr, "https://") {
		return upstream.NewREST(conf)
	}
	return upstream.NewADS(conf)
}
