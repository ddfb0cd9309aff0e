package kubernetes

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// keep leaves the node running after the tests, until Enter is pressed.
var keep = flag.Bool("keep", false, "keep the node after the tests until end of file on standard input")

// node is the cluster of all tests.
var node *cluster.Cluster

// programs is the directory of the programs of this module.
var programs string

func TestMain(m *testing.M) {
	cluster.Reexec()
	flag.Parse()
	if os.Getenv("KUBERNETES_TEST") == "skip" {
		fmt.Println("KUBERNETES_TEST=skip: the tests in a real Kubernetes are skipped")
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "holdfast-k8s-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	programs = filepath.Join(dir, "programs")
	if err := build(); err != nil {
		return 1, err
	}
	began := time.Now()
	logf := func(format string, args ...any) {
		fmt.Printf("%5.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if node, err = cluster.Start(cluster.Config{Components: components(), Dir: filepath.Join(dir, "node"), Logf: logf}); err != nil {
		return 1, fmt.Errorf("%w\n(KUBERNETES_TEST=skip skips these tests)", err)
	}
	defer node.Stop()
	images, err := images(dir)
	if err != nil {
		return 1, err
	}
	if err := node.Import(images...); err != nil {
		return 1, err
	}
	logf("%d images imported", len(images))
	if err := setUp(); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, node.Logs())
	}
	logf("name server and control plane Ready")
	code = m.Run()
	logf("tests done")
	if len(results) > 0 {
		fmt.Println("\n" + table(results))
	}
	if *keep {
		fmt.Printf("the node is kept: nsenter --target %d --all; kubectl --kubeconfig %s\n", node.PID(), filepath.Join(dir, "node/pki/admin.kubeconfig"))
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	return code, nil
}

// components is the directory that `make kubernetes` fills.
func components() string {
	if dir := os.Getenv("KUBERNETES"); dir != "" {
		return dir
	}
	return filepath.Join(repository(), ".peers", "kubernetes")
}

// repository is the root of the repository.
func repository() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err) // the working directory is gone
	}
	return dir
}

// build builds the programs of this module, which containers and the node run.
func build() error {
	if _, err := os.Stat(filepath.Join(components(), "k8s")); err != nil {
		return errors.New("the components of Kubernetes are not built: run `make kubernetes`, or set KUBERNETES to their directory")
	}
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", programs+"/", "./load", "./pause", "./controlplane")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
