// Package rig is what the tests in a real Kubernetes share: one node for all of them, images by the Dockerfile's recipe,
// namespaces of a test's own, and events under a load that counts.
package rig

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// keep leaves the node running after the tests.
var keep = flag.Bool("keep", false, "keep the node after the tests, until a line on standard input")

var (
	// Node is the cluster of all tests.
	Node *cluster.Cluster
	// Programs is the directory of the programs of module test/kubernetes.
	Programs string
)

// Main runs the tests of a package with a node. setUp installs what they need besides; it may use the directory.
func Main(m *testing.M, setUp func(dir string) error) {
	cluster.Reexec()
	flag.Parse()
	code, err := run(m, setUp)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, setUp func(string) error) (code int, err error) {
	dir, err := os.MkdirTemp("", "holdfast-k8s-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stopOnSignal(dir)
	Programs = filepath.Join(dir, "programs")
	if err := build(); err != nil {
		return 1, err
	}
	began := time.Now()
	logf := func(format string, args ...any) {
		fmt.Printf("%5.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if Node, err = cluster.Start(cluster.Config{Components: components(), Dir: dir, Logf: logf}); err != nil {
		return 1, err
	}
	defer Node.Stop()
	images, err := images()
	if err != nil {
		return 1, err
	}
	if err := Node.Import(images...); err != nil {
		return 1, err
	}
	if err := loadRelease(Node, dir); err != nil {
		return 1, err
	}
	logf("%d images imported, and those of the release", len(images))
	if err := startNameServer(); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, Node.Logs())
	}
	if err := setUp(dir); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, Node.Logs())
	}
	logf("all is set up")
	code = m.Run()
	logf("tests done")
	if len(results) > 0 {
		fmt.Println("\n" + table())
	}
	if *keep {
		fmt.Printf("the node is kept: nsenter --target %d --all; kubectl --kubeconfig %s\n", Node.PID(), filepath.Join(dir, "pki/admin.kubeconfig"))
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	return code, nil
}

// stopOnSignal lets an interrupted test leave nothing either.
func stopOnSignal(dir string) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		if Node != nil {
			Node.Stop()
		}
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}()
}

// components is the directory that `make kubernetes` fills, and that `make cluster` names.
func components() string { return os.Getenv("KUBERNETES") }

// Repository is the root of the repository. Go starts a test in the directory of its package.
var Repository = sync.OnceValue(func() string {
	at, err := os.Getwd()
	for ; err == nil; at = filepath.Dir(at) {
		mod, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module github.com/holdfast-xds/holdfast\n") {
			return at
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	panic(fmt.Sprintf("no go.mod of holdfast above the directory of the test: %v", err))
})

// build builds the programs of module test/kubernetes, which containers and the node run.
func build() error {
	if _, err := os.Stat(filepath.Join(components(), "k8s")); err != nil {
		return errors.New("the components of Kubernetes are not built: run `make cluster`, or set KUBERNETES to the directory that `make kubernetes` names")
	}
	if err := os.MkdirAll(Programs, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-o", Programs+"/", "./load", "./pause", "./controlplane")
	cmd.Dir = filepath.Join(Repository(), "test/kubernetes")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// OnlyLong skips a test in the short form.
func OnlyLong(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("only in the long form: make cluster")
	}
}

// RolledOut waits until a deployment has only new pods, and all of them are Ready.
func RolledOut(namespace, deployment string) error {
	_, err := Node.Kubectl("rollout", "status", "--namespace", namespace, "deployment/"+deployment, "--timeout=3m")
	return err
}
