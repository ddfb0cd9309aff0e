package sds

import (
	"context"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// pushes is a source that pushes certificates.
type pushes struct {
	update func(pki.Update)
	fault  func(error)
}

func (p *pushes) Run(ctx context.Context, update func(pki.Update), fault func(error)) error {
	p.update, p.fault = update, fault
	<-ctx.Done()
	return nil
}

// withPushes runs a test with a source whose certificates are pushed, as by SPIRE.
func withPushes(t *testing.T, ids []Identity, change func(*Config), test func(*rig, *pushes)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{T: t, log: new(buffer)}
		cfg := Config{Sources: []SourceConfig{{CA: "spire:unix:/run/spire.sock", Identities: ids}}, Now: r.now, Log: r.log.logger()}
		if change != nil {
			change(&cfg)
		}
		p := &pushes{}
		r.prepare = func(m *Manager) { m.sources[0].pusher = p }
		r.start(cfg)
		test(r, p)
		r.end()
	})
}

// issue makes a certificate with its key.
func (r *rig) issue(a *local.Authority, id string, lifetime time.Duration) pki.Pair {
	r.Helper()
	key, err := pki.ECDSAP256.Generate()
	r.check(err)
	answer, err := a.Sign(pki.Request{Key: key, Names: pki.Names{ID: id}, Lifetime: lifetime}, r.now())
	r.check(err)
	return pki.Pair{Key: key, Chain: answer.Chain}
}

func bundle(of map[string]*local.Authority) map[string][]*x509.Certificate {
	out := make(map[string][]*x509.Certificate)
	for domain, a := range of {
		out[domain] = a.Roots()
	}
	return out
}

func TestWhatIsPushedIsServedUnderEachOfItsNames(t *testing.T) {
	withPushes(t, nil, nil, func(r *rig, p *pushes) {
		mesh, partner := r.authority(), r.authority()
		first, second := r.issue(mesh, workload, time.Hour), r.issue(mesh, workload+"-2", time.Hour)
		p.update(pki.Update{Pairs: []pki.Pair{first, second}, Bundles: bundle(map[string]*local.Authority{"mesh.test": mesh, "partner.test": partner})})
		synctest.Wait()
		r.checkCertificate()
		for name, want := range map[string]pki.Pair{DefaultSecret: first, workload: first, workload + "-2": second} {
			if got := r.pair(name); got == nil || !got.Leaf().Equal(want.Leaf()) {
				t.Errorf("%s: not the certificate that was pushed for it", name)
			}
		}
		if !same(r.roots("spiffe://mesh.test"), mesh.Roots()) || !same(r.roots("spiffe://partner.test"), partner.Roots()) || !same(r.roots(DefaultRoots), mesh.Roots()) {
			t.Error("not the roots that were pushed")
		}
		var conf tlsv3.SPIFFECertValidatorConfig
		r.check(r.state.secret(AllRoots).GetValidationContext().GetCustomValidatorConfig().GetTypedConfig().UnmarshalTo(&conf))
		if len(conf.GetTrustDomains()) != 2 {
			t.Errorf("%d trust domains in %s", len(conf.GetTrustDomains()), AllRoots)
		}
		if err := r.m.Ready(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheIdentityThatIsConfiguredIsTakenOutOfWhatIsPushed(t *testing.T) {
	withPushes(t, []Identity{identified(workload + "-2")}, nil, func(r *rig, p *pushes) {
		mesh := r.authority()
		bundles := bundle(map[string]*local.Authority{"mesh.test": mesh})
		first, second := r.issue(mesh, workload, time.Hour), r.issue(mesh, workload+"-2", time.Hour)
		p.update(pki.Update{Pairs: []pki.Pair{first}, Bundles: bundles})
		synctest.Wait()
		if s := r.status(); r.pair(DefaultSecret) != nil || s.Error == "" || !strings.Contains(s.Error, "none of the 1 certificates is for "+workload+"-2") {
			t.Errorf("%+v", s)
		}
		p.update(pki.Update{Pairs: []pki.Pair{first, second}, Bundles: bundles})
		synctest.Wait()
		if got := r.pair(DefaultSecret); got == nil || !got.Leaf().Equal(second.Leaf()) {
			t.Error("not the one that is configured")
		}
		if s := r.status(); s.Error != "" || s.Attempts != 0 || !s.Next.IsZero() {
			t.Errorf("%+v", s)
		}
	})
}

func TestAPushedCertificateThatDoesNotHoldReplacesNothing(t *testing.T) {
	withPushes(t, nil, nil, func(r *rig, p *pushes) {
		mesh, other := r.authority(), r.authority()
		bundles := bundle(map[string]*local.Authority{"mesh.test": mesh})
		good := r.issue(mesh, workload, 24*time.Hour)
		p.update(pki.Update{Pairs: []pki.Pair{good}, Bundles: bundles})
		ended := r.issue(mesh, workload, time.Minute)
		r.wait(time.Hour)
		for name, bad := range map[string]pki.Pair{"ended": ended, "of another root": r.issue(other, workload, time.Hour)} {
			p.update(pki.Update{Pairs: []pki.Pair{bad}, Bundles: bundles})
			synctest.Wait()
			if got := r.checkCertificate(); !got.Leaf().Equal(good.Leaf()) {
				t.Errorf("one that is %s is in use", name)
			}
			if r.status().Error == "" {
				t.Errorf("no log of one that is %s", name)
			}
		}
		p.fault(errors.New("the agent is away"))
		r.wait(time.Hour)
		r.checkCertificate()
		if s := r.m.Status(); len(s.Faults) != 1 || s.Faults[0] != "the agent is away" {
			t.Errorf("faults %q", s.Faults)
		}
	})
}

// The bundles of SPIRE are complete: a missing root was revoked.
func TestARootThatIsNotPushedAnyMoreIsNotTrustedAnyMore(t *testing.T) {
	withPushes(t, nil, nil, func(r *rig, p *pushes) {
		mesh, next, partner := r.authority(), r.authority(), r.authority()
		both := bundle(map[string]*local.Authority{"mesh.test": mesh, "partner.test": partner})
		both["mesh.test"] = append(slices.Clone(both["mesh.test"]), next.Roots()...)
		p.update(pki.Update{Pairs: []pki.Pair{r.issue(mesh, workload, time.Hour)}, Bundles: both})
		synctest.Wait()
		r.checkCertificate()
		p.update(pki.Update{Pairs: []pki.Pair{r.issue(next, workload, time.Hour)}, Bundles: bundle(map[string]*local.Authority{"mesh.test": next})})
		synctest.Wait()
		r.checkCertificate()
		if !same(r.roots(DefaultRoots), next.Roots()) {
			t.Error("the old root is still trusted")
		}
		if got := slices.Sorted(maps.Keys(r.m.secrets)); slices.Contains(got, "spiffe://partner.test") {
			t.Errorf("a federation that ended is still published: %q", got)
		}
	})
}

func TestWhatWasPushedSurvivesARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	withPushes(t, nil, func(c *Config) { c.IdentityDir = dir }, func(r *rig, p *pushes) {
		mesh, partner := r.authority(), r.authority()
		p.update(pki.Update{
			Pairs:   []pki.Pair{r.issue(mesh, workload, 24*time.Hour)},
			Bundles: bundle(map[string]*local.Authority{"mesh.test": mesh, "partner.test": partner}),
		})
		synctest.Wait()
		before := r.checkCertificate()
		r.restart(nil)
		if after := r.checkCertificate(); !after.Leaf().Equal(before.Leaf()) {
			t.Error("another certificate")
		}
		if !same(r.roots("spiffe://partner.test"), partner.Roots()) {
			t.Error("the partner's roots are forgotten")
		}
	})
}

// The files have the layout of a Kubernetes secret.
func TestACertificateOfFilesIsServedAndFollowed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := &rig{T: t, log: new(buffer)}
		ca := r.authority()
		put := func(p pki.Pair) {
			r.write(filepath.Join(dir, "tls.crt"), p.ChainPEM())
			r.write(filepath.Join(dir, "tls.key"), p.KeyPEM())
			r.write(filepath.Join(dir, "ca.crt"), pki.EncodeCerts(ca.Roots()))
		}
		r.start(Config{Sources: []SourceConfig{{CA: "files:" + dir}}, Now: r.now, Log: r.log.logger()})
		r.wait(time.Minute)
		if err := r.m.Ready(); err == nil || r.state.secret(DefaultSecret) != nil {
			t.Errorf("ready: %v", err)
		}
		first := r.issue(ca, workload, 24*time.Hour)
		put(first)
		r.wait(5 * time.Second)
		if got := r.checkCertificate(); !got.Leaf().Equal(first.Leaf()) {
			t.Error("not the certificate of the files")
		}
		second := r.issue(ca, workload, 24*time.Hour)
		put(second)
		r.wait(5 * time.Second)
		if got := r.checkCertificate(); !got.Leaf().Equal(second.Leaf()) {
			t.Error("the files are not followed")
		}
		// Neither another root nor missing files replace the valid certificate.
		ca = r.authority()
		third := r.issue(r.authority(), workload, 24*time.Hour)
		put(third)
		r.wait(time.Minute)
		if got := r.pair(DefaultSecret); !got.Leaf().Equal(second.Leaf()) {
			t.Error("a certificate that does not lead to its roots is in use")
		}
		r.check(os.RemoveAll(dir))
		r.wait(time.Hour)
		if got := r.checkCertificate(); !got.Leaf().Equal(second.Leaf()) {
			t.Error("the certificate went with the files")
		}
		r.end()
	})
}
