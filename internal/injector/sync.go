package injector

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// interval is how often the Secret and the configuration are read without an event, and retry how soon after an error.
const (
	interval = time.Minute
	retry    = 2 * time.Second
	// livenessLimit is how long a turn of the loop may take: it makes five requests at most.
	livenessLimit = interval + 6*requestTimeout + time.Minute
)

// synchronizer keeps authorities, serving certificate and caBundle as they are to be. Only Run's goroutine changes it; the
// fields below mu are read by others.
type synchronizer struct {
	cluster    cluster
	policy     policy
	secretName string
	namespace  string
	configName string
	metrics    *metrics
	log        *slog.Logger

	known   *authorities // the last ones that the Secret had; nil before
	trusted []byte       // the caBundle that the configuration had last
	signer  *x509.Certificate
	changes chan struct{}

	mu     sync.Mutex
	cert   *tls.Certificate
	ready  bool
	reason string
	turned time.Time
}

func newSynchronizer(c cluster, p policy, namespace, secretName, configName string, m *metrics, log *slog.Logger) *synchronizer {
	return &synchronizer{
		cluster: c, policy: p, namespace: namespace, secretName: secretName, configName: configName, metrics: m, log: log,
		changes: make(chan struct{}, 1), reason: "the API server has not answered yet",
	}
}

// Run synchronizes until ctx has ended. Errors of the API server are logged when they change, and tried again.
func (s *synchronizer) Run(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx) })
	defer watching.Wait()
	last := ""
	for ctx.Err() == nil {
		err := s.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		s.turn(err)
		wait := s.wait()
		switch {
		case err == nil && last != "":
			s.log.Info("Secret and webhook configuration are synchronized again")
			last = ""
		case err != nil:
			s.metrics.syncFailures.Inc()
			wait = retry
			switch {
			case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
				s.log.Info("another injector was faster", "err", err)
			case err.Error() != last:
				s.log.Warn("Secret and webhook configuration are not synchronized", "err", err)
				last = err.Error()
			}
		}
		select {
		case <-ctx.Done():
		case <-s.changes:
		case <-time.After(wait):
		}
	}
}

// watch calls for a synchronization after each change. Where it fails, the interval is how long changes may take.
func (s *synchronizer) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.cluster.watch(ctx, s.changed); err != nil && ctx.Err() == nil {
			s.log.Debug("watch ended", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

func (s *synchronizer) changed() {
	select {
	case s.changes <- struct{}{}:
	default: // one is due already
	}
}

// wait returns how long nothing is to be done.
func (s *synchronizer) wait() time.Duration {
	return min(interval, s.policy.certLifetime/10, max(s.policy.overlap()/2, time.Second))
}

// turn records the end of a turn of the loop. An error later does not make the injector not ready: it can still be called.
func (s *synchronizer) turn(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turned = time.Now()
	if err == nil && !s.ready {
		s.log.Info("ready: the webhook configuration trusts the serving certificate")
	}
	s.ready = s.ready && s.cert != nil && time.Now().Before(s.cert.Leaf.NotAfter) || err == nil
	s.reason = ""
	if !s.ready {
		s.reason = "the serving certificate has expired"
		if err != nil {
			s.reason = err.Error()
		}
	}
	s.metrics.ready.Set(map[bool]float64{true: 1}[s.ready])
}

// Ready returns why the API server cannot call the injector, "" if it can.
func (s *synchronizer) Ready() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return s.reason
	}
	return ""
}

// Live reports whether the loop turns.
func (s *synchronizer) Live() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turned.IsZero() || time.Since(s.turned) < livenessLimit
}

// Certificate is for crypto/tls.
func (s *synchronizer) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert == nil {
		return nil, errors.New("there is no serving certificate yet: " + s.reason)
	}
	return s.cert, nil
}

// sync makes one turn: authorities, serving certificate, caBundle. Whatever fails, a serving certificate that is due is
// renewed with the authorities that are known.
func (s *synchronizer) sync(ctx context.Context) error {
	shared := s.share(ctx)
	if s.known == nil {
		return shared
	}
	if err := s.renew(); err != nil {
		return errors.Join(shared, err)
	}
	if shared != nil {
		return shared
	}
	return s.publish(ctx)
}

// share reads the authorities of the Secret, takes the step of the rotation that is due, and restores a Secret that was
// emptied or deleted.
func (s *synchronizer) share(ctx context.Context) error {
	now := time.Now()
	found, err := s.cluster.secret(ctx)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("secret %s/%s: %w", s.namespace, s.secretName, err)
	}
	var read authorities
	if !missing {
		read, err = parseAuthorities(found.Data)
	}
	what := ""
	switch {
	case missing || errors.Is(err, errNoAuthority):
		if s.known != nil {
			read, what, err = *s.known, "the Secret had lost the authority, which is restored", nil
		} else if read, err = s.policy.first(now); err == nil {
			what = "the first authority was made"
		}
	case err == nil:
		err = s.policy.holdsFor(read)
	}
	if err != nil {
		return fmt.Errorf("secret %s/%s: %w. Remove its data, and a new authority is made", s.namespace, s.secretName, err)
	}
	next, step, err := s.policy.step(read, now, s.isTrusted)
	if err != nil {
		return fmt.Errorf("authority: %w", err)
	}
	if step != "" {
		what = step
	}
	if what != "" {
		if err := s.write(ctx, found, missing, next); err != nil {
			return err
		}
		s.log.Info("authority: "+what, "until", next.current.Leaf().NotAfter.UTC().Format(time.RFC3339))
	}
	s.known = &next
	s.metrics.caExpiry.Set(float64(next.current.Leaf().NotAfter.Unix()))
	return nil
}

// holdsFor returns an error if an authority may not sign for the names of this injector: that of another Service.
func (p policy) holdsFor(a authorities) error {
	permitted := a.current.Leaf().PermittedDNSDomains
	for _, name := range p.names.DNS {
		if len(permitted) > 0 && !slices.Contains(permitted, name) {
			return fmt.Errorf("the authority is for %v, and this injector is %s", permitted, name)
		}
	}
	return nil
}

// write writes authorities into the Secret as it was read. If another injector was faster, its authorities are read next.
func (s *synchronizer) write(ctx context.Context, found *corev1.Secret, missing bool, a authorities) error {
	var err error
	if missing {
		err = s.cluster.createSecret(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: s.secretName, Namespace: s.namespace}, Type: corev1.SecretTypeOpaque, Data: a.data(),
		})
	} else {
		changed := found.DeepCopy()
		for _, key := range []string{currentCert, currentKey, nextCert, nextKey, previousCert, sinceKey} {
			delete(changed.Data, key)
		}
		if changed.Data == nil {
			changed.Data = make(map[string][]byte)
		}
		maps.Copy(changed.Data, a.data())
		err = s.cluster.updateSecret(ctx, changed)
	}
	switch {
	case missing && apierrors.IsForbidden(err):
		return fmt.Errorf("secret %s/%s does not exist, and this injector may not create one: create an empty one, as the manifests do: %w", s.namespace, s.secretName, err)
	case err != nil:
		return fmt.Errorf("secret %s/%s: %w", s.namespace, s.secretName, err)
	}
	return nil
}

// isTrusted reports whether the caBundle that the configuration had last contains a certificate.
func (s *synchronizer) isTrusted(c *x509.Certificate) bool {
	return bytes.Contains(s.trusted, pki.EncodeCerts([]*x509.Certificate{c}))
}

// renew makes a serving certificate if there is none, if half of its time is over, or if another authority signs.
func (s *synchronizer) renew() error {
	now := time.Now()
	s.mu.Lock()
	cert := s.cert
	s.mu.Unlock()
	signer := s.known.current.Leaf()
	if cert != nil && s.signer.Equal(signer) && now.Before(cert.Leaf.NotAfter.Add(-s.policy.certLifetime/2)) {
		return nil
	}
	pair, err := s.policy.sign(*s.known, now)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	made := &tls.Certificate{PrivateKey: pair.Key, Leaf: pair.Leaf()}
	for _, c := range pair.Chain {
		made.Certificate = append(made.Certificate, c.Raw)
	}
	s.signer = signer
	s.mu.Lock()
	s.cert = made
	s.mu.Unlock()
	s.metrics.certExpiry.Set(float64(made.Leaf.NotAfter.Unix()))
	s.log.Info("serving certificate signed", "until", made.Leaf.NotAfter.UTC().Format(time.RFC3339), "authority", signer.Subject.CommonName)
	return nil
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// publish writes the caBundle into every webhook of the configuration that has another one.
func (s *synchronizer) publish(ctx context.Context) error {
	found, err := s.cluster.configuration(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("MutatingWebhookConfiguration %s does not exist: apply it, or name another by --webhook-configuration", s.configName)
	case err != nil:
		return fmt.Errorf("MutatingWebhookConfiguration %s: %w", s.configName, err)
	case len(found.Webhooks) == 0:
		return fmt.Errorf("MutatingWebhookConfiguration %s has no webhook", s.configName)
	}
	bundle := s.known.bundle()
	// With the version that was read, a change of somebody else meanwhile is a conflict: indexes may be others.
	patch := []operation{{"replace", "/metadata/resourceVersion", found.ResourceVersion}}
	for i, w := range found.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, bundle) {
			patch = append(patch, operation{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle})
		}
	}
	if len(patch) > 1 {
		text, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		if err := s.cluster.patchConfiguration(ctx, text); err != nil {
			return fmt.Errorf("MutatingWebhookConfiguration %s: %w", s.configName, err)
		}
		s.metrics.repairs.Inc()
		s.log.Info("caBundle written", "configuration", s.configName, "authorities", len(s.known.roots()))
	}
	s.trusted = bundle
	return nil
}
