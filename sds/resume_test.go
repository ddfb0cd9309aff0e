package sds

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// withIdentityDir runs a test with an identity directory.
func withIdentityDir(t *testing.T, test func(r *rig, dir string)) {
	dir := filepath.Join(t.TempDir(), "identity")
	signing(t, func(c *Config) { c.IdentityDir = dir }, func(r *rig) { test(r, dir) })
}

// restart ends the manager and starts another one.
func (r *rig) restart(change func(*Config)) {
	r.Helper()
	r.end()
	cfg := r.m.cfg
	if change != nil {
		change(&cfg)
	}
	r.start(cfg)
}

func TestARestartedAgentGoesOnWithItsCertificateWhileTheCAIsAway(t *testing.T) {
	withIdentityDir(t, func(r *rig, _ string) {
		before, next := r.checkCertificate(), r.status().Next
		r.ca.setMode("stalls")
		r.wait(time.Hour)
		r.ca.count()
		r.restart(nil)
		if after := r.checkCertificate(); !after.Leaf().Equal(before.Leaf()) || !pkiSame(after, before) {
			t.Error("another certificate")
		}
		if err := r.m.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		// The stored time of renewal is used again.
		if got := r.status().Next; !got.Equal(next) {
			t.Errorf("the next attempt is at %s, and was at %s", got, next)
		}
		if n := r.ca.count(); n > 0 {
			t.Errorf("the CA was asked %d times", n)
		}
		r.ca.setMode("")
		r.wait(13 * time.Hour)
		if after := r.checkCertificate(); after.Leaf().Equal(before.Leaf()) {
			t.Error("not renewed")
		}
	})
}

// Peers still have certificates of the root that was replaced before the restart.
func TestTheOverlapOfRootsSurvivesARestart(t *testing.T) {
	withIdentityDir(t, func(r *rig, _ string) {
		r.checkCertificate()
		r.ca.rotate(r.authority(), false)
		r.wait(14 * time.Hour)
		r.checkCertificate()
		before := r.roots(DefaultRoots)
		r.restart(nil)
		if got := r.roots(DefaultRoots); len(got) != 2 || !same(got, before) {
			t.Errorf("%d roots", len(got))
		}
		r.wait(DefaultRootOverlap)
		if got := r.roots(DefaultRoots); !same(got, r.ca.authority.Roots()) {
			t.Errorf("%d roots after the overlap", len(got))
		}
	})
}

func TestWhatWasKeptIsVerifiedBeforeItIsUsed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(r *rig, dir string, c *Config)
		want   string
	}{
		{"it has ended", func(r *rig, _ string, _ *Config) { r.set(25 * time.Hour) }, "the certificate expired at"},
		{"it is for another identity", func(_ *rig, _ string, c *Config) {
			c.Sources[0].Identities = []Identity{identified(workload + "-2")}
		}, "want exactly " + workload + "-2"},
		{"the key was cut off", func(r *rig, dir string, _ *Config) {
			r.check(os.Truncate(filepath.Join(dir, "default", "tls.key"), 50))
		}, "damaged or cut off"},
		{"the key is gone", func(r *rig, dir string, _ *Config) {
			key, err := filepath.EvalSymlinks(filepath.Join(dir, "default", "tls.key"))
			r.check(err)
			r.check(os.Remove(key))
		}, "tls.key: no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			withIdentityDir(t, func(r *rig, dir string) {
				r.checkCertificate()
				r.ca.setMode("fails")
				r.restart(func(c *Config) { tc.change(r, dir, c) })
				if r.pair(DefaultSecret) != nil {
					t.Error("it is used")
				}
				if !r.logged("the stored certificate is not used") || !r.logged(tc.want) {
					t.Errorf("log without %q:\n%s", tc.want, r.log)
				}
				r.ca.setMode("")
				r.wait(urgentPause)
				if r.pair(DefaultSecret) == nil {
					t.Error("no certificate from the CA either")
				}
			})
		})
	}
}

// A full or broken disk costs the certificate only after a restart.
func TestWhatCannotBeKeptIsUsedAllTheSame(t *testing.T) {
	withIdentityDir(t, func(r *rig, dir string) {
		r.checkCertificate()
		r.check(os.RemoveAll(dir))
		r.check(os.WriteFile(dir, nil, 0o600)) // the path is a file now
		r.wait(14 * time.Hour)
		r.checkCertificate()
		s := r.m.Status()
		if len(s.Faults) != 1 || !strings.Contains(s.Faults[0], "a restart would lose it") || s.Identities[0].Failed[NotKept] == 0 {
			t.Errorf("%+v", s)
		}
		r.check(os.Remove(dir))
		r.wait(14 * time.Hour)
		r.checkCertificate()
		if s := r.m.Status(); len(s.Faults) > 0 {
			t.Errorf("faults %q after the disk was mended", s.Faults)
		}
	})
}

// Other users could write keys of their own there.
func TestAnIdentityDirectoryThatOthersMayWriteToStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{Sources: []SourceConfig{{CA: "dev"}}, IdentityDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "chmod go-w it") {
		t.Errorf("%v", err)
	}
}

// In a directory for everybody, another user could create an authority first.
func TestTheAuthorityForDevelopmentIsKeptWhereNobodyElseCanPlantOne(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to somebody else")
	}
	const stranger = 54321
	for _, mode := range []os.FileMode{0o777, 0o777 | os.ModeSticky} {
		dir := filepath.Join(t.TempDir(), "shared")
		planted := filepath.Join(dir, ".dev-ca")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode), os.Mkdir(planted, 0o755), os.Chown(planted, stranger, -1)); err != nil {
			t.Fatal(err)
		}
		place := runDev(t, dir, filepath.Join(dir, "holdfast", ".dev-ca"))
		if entries, err := os.ReadDir(planted); err != nil || len(entries) > 0 {
			t.Errorf("%v, %v", entries, err)
		}
		if info, err := os.Lstat(place); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%v, %v", info, err)
		}
	}
}

// runDev runs an authority for development until it has its files in place.
func runDev(t *testing.T, dir, place string) string {
	t.Helper()
	m, err := New(Config{Sources: []SourceConfig{{CA: "dev"}}, IdentityDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	for ctx.Err() == nil {
		if _, err := os.Lstat(filepath.Join(place, "ca-cert.pem")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Errorf("no authority in %s", place)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return place
}
