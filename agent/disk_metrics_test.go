package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestWritesThatFailAreCounted(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.make()
		d := r.servesFrom(&fakeDisk{})
		r.whole(r.cfg.Node)
		r.pass(time.Minute)
		if n := r.agent.Status().Storage.WriteErrors; n != 0 {
			t.Errorf("%d before anything failed", n)
		}
		d.set(func(d *fakeDisk, err error) { d.appendErr, d.rewriteErr = err, err }, errors.New("input/output error"))
		r.cp.Set(xdstest.CLA("c1", "127.0.0.1:2"))
		r.pass(time.Minute)
		failed := r.agent.Status().Storage.WriteErrors
		if failed == 0 {
			t.Error("none after a minute without a disk")
		}
		d.set(func(d *fakeDisk, _ error) { d.appendErr, d.rewriteErr = nil, nil }, nil)
		r.pass(2 * time.Minute)
		if n := r.agent.Status().Storage.WriteErrors; n < failed {
			t.Errorf("%d were %d before", n, failed)
		}
	})
}

// A counter does not go down when what could not be stored goes away.
func TestWhatWasNotStoredIsCountedForGood(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.keepIn(t.TempDir())
		r.start()
		c := r.whole(r.cfg.Node)
		c.Subscribe(xds.SecretType, "s")
		r.cp.Set(xdstest.Secret("s", []byte("certificate"), []byte("key")))
		r.pass(time.Minute)
		total := func() (skipped, missing int) {
			s := r.agent.Status().Storage
			for _, n := range s.Skipped {
				skipped += n
			}
			for _, n := range s.NotStored {
				missing += n
			}
			return skipped, missing
		}
		if skipped, missing := total(); skipped != 1 || missing != 1 {
			t.Fatalf("%d were not stored, and %d are missing", skipped, missing)
		}
		c.Unsubscribe(xds.SecretType, "s")
		r.cp.Remove(xds.SecretType, "s")
		r.pass(time.Hour)
		if skipped, _ := total(); skipped != 1 {
			t.Errorf("%d were not stored, and it was 1 before", skipped)
		}
	})
}
