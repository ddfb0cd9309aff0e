package ca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// ownLifetime is the lifetime of the control plane's own certificate; it is renewed after half of it.
const ownLifetime = 24 * time.Hour

// retryOwn is the pause after an own certificate could not be made.
const retryOwn = 5 * time.Second

// own is the certificate of the control plane's server.
type own struct {
	names pki.Names

	mu   sync.Mutex
	pair *tls.Certificate // nil until the authority has signed one
}

// ownNames sorts names into DNS names and addresses.
func ownNames(all []string) (pki.Names, error) {
	var dns, ips []string
	for _, name := range all {
		if net.ParseIP(name) != nil {
			ips = append(ips, name)
		} else {
			dns = append(dns, name)
		}
	}
	return pki.ParseNames("", dns, ips)
}

// Certificate returns the certificate of the control plane's server.
func (s *Server) Certificate() (*tls.Certificate, error) {
	s.own.mu.Lock()
	defer s.own.mu.Unlock()
	if s.own.pair == nil {
		return nil, errors.New("the authority has not signed a certificate for this server yet: see the log")
	}
	if s.cfg.Now().After(s.own.pair.Leaf.NotAfter) {
		return nil, errors.New("the certificate of this server has expired, and the authority signs no other: see the log")
	}
	return s.own.pair, nil
}

// Run keeps the roots and the server's own certificate current until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	renewing.Go(func() { s.renewOwn(ctx, changed) })
	return s.cfg.Authority.Run(ctx, func(roots []*x509.Certificate) {
		s.setRoots(roots)
		select {
		case changed <- struct{}{}:
		default:
		}
	}, func(err error) {
		if err != nil {
			s.cfg.Log.Error("the authority has a problem; its last valid content, if it had any, stays in use", "err", err)
			return
		}
		s.cfg.Log.Info("the authority has no problem any more")
	})
}

// renewOwn makes the server's certificate when the authority has changed, and when half of its time is over.
func (s *Server) renewOwn(ctx context.Context, changed <-chan struct{}) {
	select {
	case <-changed:
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		pause, err := s.issueOwn(ctx)
		if err != nil {
			s.cfg.Log.Error("the authority signs no certificate for this server", "err", err)
			if !wake.Sleep(ctx, retryOwn) {
				return
			}
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (s *Server) issueOwn(ctx context.Context) (renewIn time.Duration, err error) {
	key, err := pki.DefaultKeyType.Generate()
	if err != nil {
		return 0, err
	}
	answer, err := s.cfg.Authority.Issue(ctx, pki.Request{Key: key, Names: s.own.names, Lifetime: ownLifetime})
	if err != nil {
		return 0, err
	}
	verified, err := pki.Expectation{Key: key.Public(), Names: &s.own.names, Roots: answer.Roots}.Verify(answer.Chain, s.cfg.Now())
	if err != nil {
		return 0, fmt.Errorf("the certificate that it signs: %w", err)
	}
	s.noteChain(answer)
	pair := &tls.Certificate{PrivateKey: key, Leaf: answer.Chain[0]}
	for _, c := range answer.Chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	s.own.mu.Lock()
	s.own.pair = pair
	s.own.mu.Unlock()
	left := verified.Until.Sub(s.cfg.Now())
	s.cfg.Log.Info("certificate of this server", "names", s.own.names.String(), "not_after", verified.Until.UTC().Format(time.RFC3339))
	return max(left/2, time.Second), nil
}
