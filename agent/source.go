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
	var observer upstream.Observer
	if a.metrics != nil {
		observer = a.metrics.Upstream()
	}
	if strings.HasPrefix(addr, "http://") || strings.HasPrefix(addr, "https://") {
		return upstream.NewREST(upstream.RESTConfig{
			URL:        addr,
			Security:   a.cfg.Security,
			Headers:    a.cfg.Headers,
			Refresh:    a.cfg.RESTRefresh,
			MaxMessage: a.cfg.MaxMessage,
			AckTimeout: a.cfg.AckTimeout,
			Log:        a.cfg.Log,
			Observer:   observer,
		})
	}
	return upstream.NewADS(upstream.ADSConfig{
		Addr:       addr,
		Form:       a.cfg.UpstreamForm,
		Security:   a.cfg.Security,
		Headers:    a.cfg.Headers,
		MaxMessage: a.cfg.MaxMessage,
		AckTimeout: a.cfg.AckTimeout,

		KeepaliveTime:    a.cfg.KeepaliveTime,
		KeepaliveTimeout: a.cfg.KeepaliveTimeout,

		Log:      a.cfg.Log,
		Observer: observer,
		Dial:     a.dial,
	})
}
