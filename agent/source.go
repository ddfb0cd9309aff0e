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
			return nil, fmt.Errorf("upstream %q: no directory after file:", addr)
		}
		return file.New(file.Config{Dir: dir, Logger: a.cfg.Log}), nil
	}
	if strings.HasPrefix(addr, "http://") || strings.HasPrefix(addr, "https://") {
		return nil, fmt.Errorf("upstream %q: REST upstreams are not served by this version; want host:port, unix:PATH, dns:///HOST:PORT or file:DIR", addr)
	}
	src := upstream.ADSConfig{
		Addr:       addr,
		Form:       a.cfg.UpstreamForm,
		Security:   a.cfg.Security,
		Headers:    a.cfg.Headers,
		MaxMessage: a.cfg.MaxMessage,
		AckTimeout: a.cfg.AckTimeout,
		Log:        a.cfg.Log,
	}
	if a.metrics != nil {
		src.Observer = a.metrics.Upstream()
	}
	return upstream.NewADS(src)
}
