package keystore_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/keystore"
)

// saverDir names, to a process that this test starts, the store that it shall write to.
const saverDir = "HOLDFAST_TEST_KEYSTORE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(saverDir); dir != "" {
		if err := saver(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// saver saves one record after the other, beginning after the number of the stored one,
// and prints each number when it is saved. It ends when its output is closed, or after
// many records.
func saver(dir string) error {
	s, err := keystore.New(dir)
	if err != nil {
		return err
	}
	number := 0
	if r, err := s.Load("web"); err == nil {
		number = numberOf(r)
	}
	t := &testing.T{} // the parent notices a failure as an unexpected end
	for range 10_000 {
		number++
		if err := s.Save("web", record(t, number)); err != nil {
			return err
		}
		if _, err := fmt.Println(number); err != nil {
			return err
		}
	}
	return nil
}

func numberOf(r keystore.Record) int { return int(r.Issued.Sub(now) / time.Second) }

func TestProcessKilledInTheMiddleOfSavesLeavesWhatWasSaved(t *testing.T) {
	const kills = 20
	_, dir := newStore(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range kills {
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), saverDir+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		check(t, err)
		check(t, child.Start())
		lines := bufio.NewScanner(out)
		last := 0
		for range 1 + random.IntN(5) {
			if !lines.Scan() {
				t.Fatalf("it ended by itself: %v", child.Wait())
			}
			last, err = strconv.Atoi(lines.Text())
			check(t, err)
		}
		// Anywhere within the next saves, each of which takes about a millisecond.
		for until := time.Now().Add(time.Duration(random.IntN(5000)) * time.Microsecond); time.Now().Before(until); {
			runtime.Gosched()
		}
		check(t, child.Process.Kill())
		for lines.Scan() { // the output until then
			if last, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
		}
		_ = child.Wait() // it was killed

		r, err := open(t, dir).Load("web")
		if err != nil {
			t.Fatal(err)
		}
		if n := numberOf(r); n < last || n > last+1 {
			t.Errorf("number %d is kept, and %d was saved", n, last)
		}
		if want := fmt.Sprintf("n%d", numberOf(r)); r.Domain != want || r.Pair.Leaf().DNSNames[0] != want || len(r.Anchors[want]) != 1 {
			t.Errorf("parts of several: number %d, domain %s, certificate of %v", numberOf(r), r.Domain, r.Pair.Leaf().DNSNames)
		}
	}
}
