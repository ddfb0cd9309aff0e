// Package injector is a mutating webhook that adds holdfast and Envoy to pods when they are created, with package inject.
//
// It answers the API server's admission requests, makes its serving certificate, and keeps the caBundle of its
// MutatingWebhookConfiguration. Replicas share one authority through a Secret, written with optimistic locking, and each
// signs a certificate of its own in memory. It promises that the caBundle has an authority before anything that it has
// signed is served, as long as the Secret is not replaced by somebody else, and that it goes on with what it knows when
// the API server does not answer. It does not watch pods, and changes none that exists.
package injector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Config is what an injector needs.
type Config struct {
	// Listen is the address, host:port, of the webhook, with TLS; Admin that of probes and metrics, in plaintext.
	Listen, Admin string
	// Settings is the file with the settings of injections. It is read again when it changes.
	Settings string
	// Namespace is the injector's own, whose pods it never injects. Service is the name of the Service in front of the
	// replicas, Secret that of the authority they share, WebhookConfiguration that of the MutatingWebhookConfiguration.
	Namespace, Service, Secret, WebhookConfiguration string
	// Deny denies pods that cannot be injected. Otherwise they are created without sidecars.
	Deny bool
	// CALifetime and CertLifetime are the validity of the authority and of serving certificates: the former at least
	// four times the latter, which is at least one minute.
	CALifetime, CertLifetime time.Duration
	// DrainTime is how long requests are answered after ctx has ended, until the Service leads elsewhere.
	DrainTime time.Duration
	// API is how the API server is reached.
	API *rest.Config
	// Version is shown by a metric.
	Version string
	Log     *slog.Logger
	// Output counts the lines of the log that were not written; nil for none.
	Output prometheus.Collector
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// check returns what is wrong with the configuration.
func (c Config) check() error {
	for _, f := range []struct{ flag, value string }{{"--namespace", c.Namespace}, {"--service", c.Service}} {
		if !dnsLabel.MatchString(f.value) {
			return fmt.Errorf("%s %q: want the name of an object of Kubernetes, such as holdfast", f.flag, f.value)
		}
	}
	for _, f := range []struct{ flag, value string }{{"--secret", c.Secret}, {"--webhook-configuration", c.WebhookConfiguration}} {
		if f.value == "" {
			return fmt.Errorf("%s: it is empty", f.flag)
		}
	}
	for _, f := range []struct{ flag, value string }{{"--listen", c.Listen}, {"--admin", c.Admin}} {
		if _, _, err := net.SplitHostPort(f.value); err != nil {
			return fmt.Errorf("%s %q: want host:port, such as :15017", f.flag, f.value)
		}
	}
	switch {
	case c.Settings == "":
		return errors.New("--settings is missing: name the file with the settings of injections")
	case c.CertLifetime < time.Minute:
		return fmt.Errorf("--cert-lifetime %s: want at least 1m", c.CertLifetime)
	case c.CALifetime < 4*c.CertLifetime:
		return fmt.Errorf("--ca-lifetime %s: want at least four times --cert-lifetime %s, so that there is time to replace the authority", c.CALifetime, c.CertLifetime)
	case c.CALifetime > 20*365*24*time.Hour:
		return fmt.Errorf("--ca-lifetime %s: want at most 20 years, 175200h", c.CALifetime)
	case c.DrainTime < 0 || c.DrainTime > 5*time.Minute:
		return fmt.Errorf("--drain-time %s: want 0s to 5m", c.DrainTime)
	}
	return nil
}

// Injector is the webhook. Create it with New.
type Injector struct {
	cfg      Config
	metrics  *metrics
	sync     *synchronizer
	settings atomic.Pointer[Settings]
	ending   atomic.Bool
}

// New returns an error if the configuration is wrong. It does no I/O.
func New(c Config) (*Injector, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	k, err := newKubernetes(c.API, c.Namespace, c.Secret, c.WebhookConfiguration)
	if err != nil {
		return nil, err
	}
	host := c.Service + "." + c.Namespace + ".svc" // as the API server calls it
	p := policy{names: pki.Names{DNS: []string{host}}, caLifetime: c.CALifetime, certLifetime: c.CertLifetime}
	m := newMetrics(c.Version)
	if c.Output != nil {
		m.registry.MustRegister(c.Output)
	}
	return &Injector{cfg: c, metrics: m, sync: newSynchronizer(k, p, c.Namespace, c.Secret, c.WebhookConfiguration, m, c.Log)}, nil
}

// Run reads the settings, which must be valid, and serves until ctx has ended, and for the drain time after that. It
// returns an error if it cannot listen, and when all goroutines have ended.
func (i *Injector) Run(ctx context.Context) error {
	text, err := userfile.Read(i.cfg.Settings)
	if err != nil {
		return fmt.Errorf("--settings: %w", err)
	}
	s, err := ParseSettings(text)
	if err != nil {
		return fmt.Errorf("--settings %s: %w", i.cfg.Settings, err)
	}
	i.settings.Store(s)
	i.metrics.settingsOK.Set(1)
	webhook, err := net.Listen("tcp", i.cfg.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	admin, err := net.Listen("tcp", i.cfg.Admin)
	if err != nil {
		_ = webhook.Close()
		return fmt.Errorf("--admin: %w", err)
	}
	clients, _ := listener.Room()
	webhook, admin = listener.NewPool(min(clients, maxConnections), i.cfg.Log, nil).Bound(webhook), listener.Other(admin, i.cfg.Log)
	i.cfg.Log.Info("serving", "webhook", webhook.Addr().String(), "admin", admin.Addr().String())
	// What is served goes on for the drain time; certificates and settings are kept meanwhile.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, serving := errgroup.WithContext(serving)
	g.Go(func() error {
		i.sync.Run(serving)
		return nil
	})
	g.Go(func() error {
		i.reread(serving, text)
		return nil
	})
	g.Go(func() error { return serve(serving, i.webhookServer(), webhook, true) })
	g.Go(func() error { return serve(serving, i.adminServer(), admin, false) })
	g.Go(func() error {
		select {
		case <-serving.Done():
			return nil
		case <-ctx.Done():
		}
		i.ending.Store(true)
		i.cfg.Log.Info("ending: requests are answered until the Service leads elsewhere", "drain_time", i.cfg.DrainTime)
		select {
		case <-serving.Done():
		case <-time.After(i.cfg.DrainTime):
			stop()
		}
		return nil
	})
	return g.Wait()
}

// rereadInterval is how often the file is compared with what was read: the kubelet takes up to a minute to change it.
const rereadInterval = 5 * time.Second

// reread reads the settings again when the file changes. Invalid ones are logged, and the last valid ones stay.
func (i *Injector) reread(ctx context.Context, last []byte) {
	lastErr := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(rereadInterval):
		}
		text, err := userfile.Read(i.cfg.Settings)
		if err == nil && string(text) == string(last) && lastErr == "" {
			continue
		}
		var s *Settings
		if err == nil {
			last = text
			s, err = ParseSettings(text)
		}
		if err != nil {
			if err.Error() != lastErr {
				i.cfg.Log.Error("the settings are not valid: the last valid ones stay", "file", i.cfg.Settings, "err", err)
			}
			lastErr = err.Error()
			i.metrics.settingsOK.Set(0)
			continue
		}
		lastErr = ""
		i.settings.Store(s)
		i.metrics.settingsOK.Set(1)
		i.cfg.Log.Info("settings changed", "file", i.cfg.Settings)
	}
}

// ready returns why no request should come here, "" if they may.
func (i *Injector) ready() string {
	if i.ending.Load() {
		return "ending"
	}
	return i.sync.Ready()
}

// serve serves until ctx has ended; requests that are being answered have ten seconds.
func serve(ctx context.Context, s *http.Server, lis net.Listener, tls bool) error {
	ended := make(chan error, 1)
	go func() {
		if tls {
			ended <- s.ServeTLS(lis, "", "")
		} else {
			ended <- s.Serve(lis)
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := s.Shutdown(limit)
	if err != nil {
		_ = s.Close()
	}
	<-ended
	return err
}
