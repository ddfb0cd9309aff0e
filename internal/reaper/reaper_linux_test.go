package reaper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain runs, in a process of its own, what concerns a whole process.
func TestMain(m *testing.M) {
	if os.Getenv("HOLDFAST_REAPER_CHILD") == "" {
		os.Exit(m.Run())
	}
	if err := asSubreaper(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// zombies returns how many children of this process have ended and were not waited for.
func zombies() (n int, err error) {
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, atoiErr := strconv.Atoi(e.Name()); atoiErr == nil && isZombieOf(pid, os.Getpid()) {
			n++
		}
	}
	return n, err
}

// until waits for something that happens soon.
func until(what string, holds func() (bool, error)) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok, err := holds(); ok || err != nil {
			return err
		}
	}
	return errors.New("not within 20 s: " + what)
}

// asSubreaper is what PID 1 of a container sees, without a PID namespace.
func asSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	// What leaves children behind: they end after their parent.
	leave := func(r *Reaper) error {
		cmd := exec.Command("/bin/sh", "-c", "for i in 1 2 3 4 5; do sleep 0.2 & done")
		defer r.Done(cmd)
		if err := r.Start(cmd); err != nil {
			return err
		}
		return cmd.Wait()
	}
	if err := leave(nil); err != nil {
		return err
	}
	if err := until("the test shows nothing: no zombies without a reaper", func() (bool, error) {
		n, err := zombies()
		return n == 5, err
	}); err != nil {
		return err
	}
	r := New()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(ended)
	}()
	none := func() (bool, error) {
		n, err := zombies()
		return n == 0, err
	}
	if err := until("zombies from before are left", none); err != nil {
		return err
	}
	if err := leave(r); err != nil {
		return err
	}
	// One's own keeps its status, however late it is asked for, also while others go.
	own := exec.Command("/bin/sh", "-c", "exit 7")
	if err := r.Start(own); err != nil {
		return err
	}
	if err := until("only the own zombie is left", func() (bool, error) {
		n, err := zombies()
		return n == 1 && isZombieOf(own.Process.Pid, os.Getpid()), err
	}); err != nil {
		return err
	}
	r.reap()
	err := own.Wait()
	r.Done(own)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
		return fmt.Errorf("the own process: %v, want exit status 7", err)
	}
	cancel()
	<-ended
	return until("zombies are left in the end", none)
}

func TestOrphansAreTakenAwayAndTheOwnProcessKeepsItsStatus(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOLDFAST_REAPER_CHILD=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAProcessThatNoOrphansComeToReapsNothing(t *testing.T) {
	if os.Getpid() == 1 {
		t.Skip("the tests run as PID 1")
	}
	New().Run(t.Context()) // and returns
}

func TestWithoutAReaperProcessesAreStartedAsEver(t *testing.T) {
	var r *Reaper
	cmd := exec.Command("/bin/true")
	if err := r.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	r.Done(cmd)
}
