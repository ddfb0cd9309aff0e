package injector

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// memory is a cluster with one Secret and one configuration, and the API server's optimistic locking.
type memory struct {
	mu       sync.Mutex
	version  int
	s        *corev1.Secret
	c        *admissionregistrationv1.MutatingWebhookConfiguration
	away     error
	noCreate bool
	writes   int
	watchers map[chan struct{}]bool
}

var secretResource = schema.GroupResource{Resource: "secrets"}

func newMemory() *memory {
	m := &memory{watchers: make(map[chan struct{}]bool)}
	m.s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "ca", ResourceVersion: "0"}}
	m.c = &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "0"}, Webhooks: make([]admissionregistrationv1.MutatingWebhook, 2)}
	return m
}

// change changes the cluster as somebody else does.
func (m *memory) change(f func(m *memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
	m.changed()
}

func (m *memory) changed() {
	m.version++
	for _, o := range []metav1.Object{m.s, m.c} {
		if s, ok := o.(*corev1.Secret); !ok || s != nil {
			o.SetResourceVersion(strconv.Itoa(m.version))
		}
	}
	for w := range m.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

func (m *memory) secret(context.Context) (*corev1.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.away != nil:
		return nil, m.away
	case m.s == nil:
		return nil, apierrors.NewNotFound(secretResource, "ca")
	}
	return m.s.DeepCopy(), nil
}

func (m *memory) createSecret(_ context.Context, s *corev1.Secret) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.noCreate:
		return apierrors.NewForbidden(secretResource, "ca", errors.New("no right"))
	case m.s != nil:
		return apierrors.NewAlreadyExists(secretResource, "ca")
	}
	m.s = s.DeepCopy()
	m.writes++
	m.changed()
	return nil
}

func (m *memory) updateSecret(_ context.Context, s *corev1.Secret) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.s == nil || m.s.ResourceVersion != s.ResourceVersion {
		return apierrors.NewConflict(secretResource, "ca", errors.New("it was changed"))
	}
	m.s = s.DeepCopy()
	m.writes++
	m.changed()
	return nil
}

func (m *memory) configuration(context.Context) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return nil, m.away
	}
	return m.c.DeepCopy(), nil
}

func (m *memory) patchConfiguration(_ context.Context, patch []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var operations []struct {
		Path  string
		Value json.RawMessage
	}
	if err := json.Unmarshal(patch, &operations); err != nil {
		return err
	}
	for _, o := range operations {
		if o.Path == "/metadata/resourceVersion" {
			if string(o.Value) != strconv.Quote(m.c.ResourceVersion) {
				return apierrors.NewConflict(schema.GroupResource{Resource: "mutatingwebhookconfigurations"}, "c", errors.New("it was changed"))
			}
			continue
		}
		i, err := strconv.Atoi(strings.Split(o.Path, "/")[2])
		if err != nil || o.Path != "/webhooks/"+strconv.Itoa(i)+"/clientConfig/caBundle" {
			return errors.New("patch of " + o.Path)
		}
		if err := json.Unmarshal(o.Value, &m.c.Webhooks[i].ClientConfig.CABundle); err != nil {
			return err
		}
	}
	m.changed()
	return nil
}

func (m *memory) watch(ctx context.Context, changed func()) error {
	events := make(chan struct{}, 1)
	m.mu.Lock()
	m.watchers[events] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.watchers, events)
		m.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			changed()
		}
	}
}

// replicas runs injectors until the test ends.
func replicas(t *testing.T, m *memory, p policy, count int) (all []*synchronizer) {
	t.Helper()
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); running.Wait() })
	for range count {
		s := newSynchronizer(m, p, "holdfast", "ca", "c", newMetrics("test"), slog.New(slog.NewTextHandler(io.Discard, nil)))
		all = append(all, s)
		running.Go(func() { s.Run(ctx) })
	}
	return all
}

// trusted fails unless the API server trusts what each replica serves now.
func trusted(t *testing.T, m *memory, all []*synchronizer) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, s := range all {
		cert, err := s.Certificate(nil)
		if err != nil {
			t.Fatalf("replica %d: %v", i, err)
		}
		for j, w := range m.c.Webhooks {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(w.ClientConfig.CABundle)
			if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: s.policy.names.DNS[0], CurrentTime: time.Now()}); err != nil {
				t.Fatalf("after %s: replica %d, webhook %d: %v", time.Since(began), i, j, err)
			}
		}
	}
}

func (m *memory) bundle() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.c.Webhooks[0].ClientConfig.CABundle
}

func TestReplicasShareOneAuthority(t *testing.T) {
	for name, set := range map[string]func(m *memory){
		"an empty Secret":        func(*memory) {},
		"no Secret":              func(m *memory) { m.s = nil },
		"an annotated empty one": func(m *memory) { m.s.Annotations = map[string]string{"a": "b"} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				set(m)
				all := replicas(t, m, testPolicy, 3)
				time.Sleep(10 * time.Second)
				trusted(t, m, all)
				for _, s := range all {
					if why := s.Ready(); why != "" || !s.Live() {
						t.Error(why)
					}
				}
				if m.writes != 1 || bytes.Count(m.bundle(), []byte("BEGIN")) != 1 {
					t.Errorf("%d writes of the Secret, caBundle %s", m.writes, m.bundle())
				}
			})
		})
	}
}

// While three authorities follow the first one, the API server trusts every replica, at every minute.
func TestEveryCertificateIsTrustedWhileAuthoritiesAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		p := testPolicy
		p.caLifetime, p.certLifetime = 12*time.Hour, time.Hour
		all := replicas(t, m, p, 2)
		time.Sleep(10 * time.Second)
		signers, most := make(map[string]bool), 0
		for range 30 * 60 {
			trusted(t, m, all)
			most = max(most, bytes.Count(m.bundle(), []byte("BEGIN")))
			for _, s := range all {
				cert, _ := s.Certificate(nil)
				signers[string(cert.Leaf.AuthorityKeyId)] = true
				if left := time.Until(cert.Leaf.NotAfter); left < p.certLifetime/4 {
					t.Fatalf("the certificate is valid for %s", left)
				}
			}
			time.Sleep(time.Minute)
		}
		if len(signers) < 4 || most != 2 {
			t.Errorf("%d authorities have signed, the caBundle had %d at most", len(signers), most)
		}
	})
}

func TestTheCABundleIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		all := replicas(t, m, testPolicy, 2)
		time.Sleep(10 * time.Second)
		for _, bundle := range [][]byte{nil, []byte("words")} {
			m.change(func(m *memory) { m.c.Webhooks[1].ClientConfig.CABundle = bundle })
			synctest.Wait() // the watch says it: no time passes
			trusted(t, m, all)
		}
	})
}

func TestALostSecretIsRestored(t *testing.T) {
	for name, lose := range map[string]func(m *memory){
		"deleted": func(m *memory) { m.s = nil },
		"emptied": func(m *memory) { m.s.Data = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				all := replicas(t, m, testPolicy, 2)
				time.Sleep(10 * time.Second)
				before := m.bundle()
				m.change(lose)
				time.Sleep(10 * time.Second)
				trusted(t, m, all)
				restored, err := m.secret(t.Context())
				if err != nil || !bytes.Equal(m.bundle(), before) || len(restored.Data) == 0 {
					t.Error("the authority is another one, or was not restored")
				}
			})
		})
	}
}

func TestAnAPIServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.away = errors.New("connection refused")
		all := replicas(t, m, testPolicy, 1)
		time.Sleep(10 * time.Minute)
		if why := all[0].Ready(); !strings.Contains(why, "connection refused") || !all[0].Live() {
			t.Fatalf("ready: %q", why)
		}
		if _, err := all[0].Certificate(nil); err == nil {
			t.Error("there is a certificate")
		}
		m.change(func(m *memory) { m.away = nil })
		time.Sleep(5 * time.Second)
		trusted(t, m, all)
		if why := all[0].Ready(); why != "" {
			t.Error(why)
		}
		// Later it stays ready, and renews its certificate.
		m.change(func(m *memory) { m.away = errors.New("connection refused") })
		time.Sleep(100 * time.Hour)
		if why := all[0].Ready(); why != "" {
			t.Error(why)
		}
		trusted(t, m, all)
	})
}

func TestWhatTheOperatorMustDoIsSaid(t *testing.T) {
	for name, row := range map[string]struct {
		set  func(m *memory)
		want string
	}{
		"no Secret and no right":   {func(m *memory) { m.s, m.noCreate = nil, true }, "create an empty one"},
		"a Secret of words":        {func(m *memory) { m.s.Data = map[string][]byte{"ca.crt": []byte("words")} }, "Remove its data"},
		"a configuration of none":  {func(m *memory) { m.c.Webhooks = nil }, "has no webhook"},
		"the authority of another": {func(m *memory) { m.s.Data = authorityOfAnother(t).data() }, "the authority is for [other.svc]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				row.set(m)
				s := replicas(t, m, testPolicy, 1)[0]
				time.Sleep(time.Minute)
				if why := s.Ready(); !strings.Contains(why, row.want) {
					t.Errorf("%q, want %q", why, row.want)
				}
			})
		})
	}
}

func authorityOfAnother(t *testing.T) authorities {
	t.Helper()
	p := testPolicy
	p.names.DNS = []string{"other.svc"}
	return must[authorities](t)(p.first(time.Now()))
}
