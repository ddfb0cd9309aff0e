package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// The CA is away when a certificate is due, twice, and comes back: nothing happens.
// It is away while agent and Envoy start anew: they go on with the certificate that
// was kept. It is away until the certificate has ended: it is still shown, the agent
// says what is wrong, and when the CA is back requests succeed again.
func TestACAThatIsAwayCostsNothing(t *testing.T) {
	t.Parallel()
	const lifetime = 12 * time.Second
	p := newPods(t, xdstest.Delta, xdstest.Delta)
	ca := newIstioCA(p.server)
	ca.start()
	p.server.asks(ca)
	p.server.with("--cert-lifetime", lifetime.String(), "--identity-dir", p.server.path("identity"))
	fromDir(p, p.client)
	p.start()
	traffic := testbed.StartTraffic(p.client.url, requestInterval)
	for range 2 {
		kept := p.renewed(lifetime)
		ca.stop()
		half := time.Now().Add(lifetime / 2)
		p.callUntil(limit, func(h handshake) error {
			sameCertificate(t, "while the CA is away", h.server, kept.server)
			failed, err := p.server.metric("holdfast_certificate_failing_attempts")
			switch {
			case err != nil:
				return err
			case failed == 0:
				return errors.New("the agent has not asked the CA")
			case time.Now().Before(half):
				return errors.New("it is not yet half a lifetime")
			}
			return p.server.ready() // what is in use is valid
		})
		ca.start()
	}
	kept := p.renewed(lifetime)
	p.check(traffic.Stop())
	handshakes := p.noHandshakeFailed()
	t.Logf("%d requests of traffic, %d handshakes, none failed", traffic.Sent, handshakes)

	p.server.keeps(kept)
	ca.stop()
	p.server.envoy.Kill()
	p.server.agent.Kill()
	begun := time.Now()
	p.server.runAgent()
	p.server.envoy = p.server.startEnvoy()
	sameCertificate(t, "after the start of both", p.trust().server, kept.server)
	t.Logf("from the start of agent and Envoy to the first answer, without the CA: %s", time.Since(begun).Round(time.Millisecond))
	p.server.neverWaited()

	const ended = `certificates: the certificate "default" expired`
	p.check(testbed.Eventually(lifetime+limit, func() error { return p.server.notReady(ended) }))
	chain, err := p.server.presented()
	p.check(err)
	sameCertificate(t, "after its end", chain[0], kept.server)
	if valid, err := p.server.metric("holdfast_certificate_valid"); err != nil || valid != 0 {
		t.Errorf("holdfast_certificate_valid is %v, %v; want 0", valid, err)
	}
	p.client.answers(p.client.url, http.StatusServiceUnavailable)

	ca.start()
	begun = time.Now()
	if h := p.trust(); bytes.Equal(h.server.Raw, kept.server.Raw) {
		t.Error("a certificate that has ended is taken")
	}
	t.Logf("from the return of the CA to the first answer: %s", time.Since(begun).Round(time.Millisecond))
	p.check(testbed.Eventually(limit, p.server.ready))
	if valid, err := p.server.metric("holdfast_certificate_valid"); err != nil || valid != 1 {
		t.Errorf("holdfast_certificate_valid is %v, %v; want 1", valid, err)
	}
}

// renewed waits until the server shows another certificate than now.
func (p *pods) renewed(lifetime time.Duration) (next handshake) {
	p.Helper()
	before, err := p.call()
	p.check(err)
	p.callUntil(lifetime, func(h handshake) error {
		if next = h; h.server.Equal(before.server) {
			return fmt.Errorf("the server still shows serial %x", h.server.SerialNumber)
		}
		return nil
	})
	return next
}

// keeps waits until the certificate of the server is in its identity directory.
func (p *pod) keeps(h handshake) {
	p.Helper()
	p.check(testbed.Eventually(limit, func() error {
		text, err := os.ReadFile(p.path("identity/default/tls.crt"))
		if err != nil {
			return err
		}
		chain, err := pki.ParseCerts(text)
		if err == nil && !chain[0].Equal(h.server) {
			err = fmt.Errorf("serial %x is kept, want %x", chain[0].SerialNumber, h.server.SerialNumber)
		}
		return err
	}))
}

// Without a CA there is nothing to show yet: Envoy waits for it and does not listen,
// and the agent says why. It serves soon after the CA is there.
func TestACAThatIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			p := newPods(t, form, form)
			ca := newIstioCA(p.server)
			p.server.asks(ca)
			fromDir(p, p.client)
			p.launch()
			p.check(p.server.envoy.Wait(limit, func() error {
				failed, err := p.server.metric("holdfast_certificate_failing_attempts")
				if err == nil && failed < 2 {
					err = fmt.Errorf("%v attempts failed, want 2", failed)
				}
				return err
			}))
			p.check(p.server.notReady(`certificates: no certificate "default" yet from istio:` + ca.addr))
			p.server.stat("listener_manager.lds.update_success", 1)
			if err := p.server.envoy.Ready(); err == nil {
				t.Error("Envoy is live without a certificate")
			}
			if err := testbed.Dial("tcp", p.server.addr()); err == nil {
				t.Error("Envoy listens without a certificate")
			}
			p.client.answers(p.client.url, http.StatusServiceUnavailable)
			ca.start()
			begun := time.Now()
			p.trust()
			t.Logf("from the CA's start to the first answer: %s", time.Since(begun).Round(time.Millisecond))
			p.check(testbed.Eventually(limit, p.server.ready))
			p.server.neverWaited()
			p.neverAsked()
		})
	}
}
