package proof

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The first arguments of this test's own helpers: one serves a socket in another network, the other looks around in a sandbox.
const serving, looking = "proof-test-serving", "proof-test-looking"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == serving {
		serveSocket(os.Args[2])
	}
	if len(os.Args) > 2 && os.Args[1] == looking {
		look(os.Args[2:])
	}
	os.Exit(m.Run())
}

// serveSocket serves until its standard input ends.
func serveSocket(path string) {
	lis, err := net.Listen("unix", path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("serving")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = lis.Close()
	os.Exit(0)
}

// look seals the job that is on the standard input, and says what can be done with each path.
func look(paths []string) {
	var in job
	err := json.NewDecoder(os.Stdin).Decode(&in)
	if err == nil {
		err = in.seal(0, 0)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, path := range paths {
		can := []string{}
		if conn, err := net.Dial("unix", path); err == nil {
			_ = conn.Close()
			can = append(can, "connect")
		}
		if data, err := os.ReadFile(path); err == nil && len(data) > 0 {
			can = append(can, "read")
		}
		if os.WriteFile(path, []byte("x"), 0o600) == nil {
			can = append(can, "write")
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() && os.WriteFile(filepath.Join(path, "new"), nil, 0o600) == nil {
			can = append(can, "create")
		}
		fmt.Printf("%s: %s\n", path, strings.Join(can, " "))
	}
	os.Exit(0)
}

// What the trial may do with what is in the machine. Sockets of other network namespaces, as SPIRE's and the container
// runtime's that are mounted into a pod, are none of this network, and must not be reached either.
func TestTheSandboxHasWhatATrialNeeds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can have a network and mounts of its own")
	}
	dir := t.TempDir()
	make := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	cert, log, other := make("certs/tls.crt", "cert"), make("logs/access.log", "log"), make("other", "secret")
	named, unnamed := make("named/agent.sock", ""), make("unnamed/agent.sock", "")
	state := make("state/log", "state")
	for _, path := range []string{named, unnamed} {
		server := exec.Command("/proc/self/exe", serving, path)
		server.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		stdin, err := server.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := server.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); errors.Is(err, syscall.EPERM) {
			t.Skip("no network of its own can be made here")
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stdin.Close(); _ = server.Wait() })
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "serving\n" {
			t.Fatal(line, err)
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("outside of a sandbox: %v", err)
		}
		_ = conn.Close()
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	running, err := json.Marshal(map[string]any{
		"filename": cert, "watched_directory": map[string]string{"path": filepath.Dir(named)}, "pipe": map[string]string{"path": unnamed}, "prefix": other,
		"paths": []string{"/", "/proc", "/dev", dir + "/nowhere"},
	})
	if err != nil {
		t.Fatal(err)
	}
	kept := make("named/kept", "kept")
	absent := filepath.Join(dir, "named/absent.log") // must not be made in the machine's directory
	in := job{Config: Config{StateDir: filepath.Dir(state), Envoy: program}, Dir: work, Rewritten: []byte(`{"a":1}`), Running: running, Files: []string{log, absent}, Dirs: []string{filepath.Join(dir, "listen"), filepath.Join(dir, "named/listen"), "."}}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	// What can be written, and not read, is in a /tmp of the sandbox's own, or hidden.
	want := []struct{ path, can string }{
		{named, "write"}, {kept, "read"}, {absent, ""}, {unnamed, ""}, {cert, "read"}, {other, "write"}, {log, "write"}, {"/etc/passwd", "read"}, {"/etc", ""}, {"/usr", ""}, {"/", ""},
		{state, ""}, {filepath.Join(work, stateName, "log"), "read write"}, {filepath.Join(work, bootstrapName), "read write"}, {filepath.Join(dir, "listen"), "create"}, {program, "read"},
		{"/proc/self/status", "read"}, {fmt.Sprintf("/proc/%d/status", os.Getpid()), ""}, {"/dev/null", "write"},
	}
	args := []string{looking}
	var lines strings.Builder
	for _, w := range want {
		args = append(args, w.path)
		fmt.Fprintf(&lines, "%s: %s\n", w.path, w.can)
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.SysProcAttr = namespaces()
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.Output()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("no mounts of its own can be made here")
	}
	if err != nil || string(out) != lines.String() {
		t.Errorf("%v\n%s, want\n%s", err, out, lines.String())
	}
	for _, path := range []string{absent, filepath.Join(dir, "named/listen"), filepath.Join(dir, "listen")} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s was made in the machine", path)
		}
	}
	if left, err := os.ReadDir(work); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
