package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-xds/holdfast/agent/envoy"
)

// possible returns an error if a sandbox cannot be made.
func possible() error {
	if os.Geteuid() != 0 {
		return errors.New("a proof needs root, for a network and mounts of its own: run it as root. The second agent and Envoy run as the owner of the state directory")
	}
	return nil
}

// namespaces are those of the process inside the sandbox: a network and mounts of its own, and processes that end
// with it.
func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
}

// run runs inside the sandbox.
func (in *job) run() (out outcome) {
	uid, gid, err := ownerOf(in.StateDir)
	if err == nil {
		err = in.seal(uid, gid)
	}
	if err != nil {
		return outcome{Failure: err.Error()}
	}
	ctx, cancel := context.WithTimeout(context.Background(), in.Timeout)
	defer cancel()
	args := []string{"run", "--bootstrap", in.path(bootstrapName), "--node-id", "", "--node-cluster", "", "--node-locality", "", // which is the same
		"--upstream", "unix:" + in.path("nowhere.sock"), "--socket", in.path(socketName), "--admin", "unix:" + in.path("admin.sock"),
		"--health", "", "--rest", "", "--takeover=false", "--seed", "", "--seed-publish", "",
		"--state-dir", in.path(stateName), "--log-level", "warn", "--envoy-admin", "unix:" + in.path(adminName)}
	if in.IdentityDir != "" {
		args = append(args, "--identity-dir", in.path(identityName))
	}
	environ := slices.DeleteFunc(in.Environ, func(pair string) bool { // systemd and collectors are told nothing, and the node is in the bootstrap
		return strings.HasPrefix(pair, "OTEL_") || strings.HasPrefix(pair, "NOTIFY_SOCKET=") || strings.HasPrefix(pair, "WATCHDOG_") || strings.HasPrefix(pair, "HOLDFAST_NODE_")
	})
	agent, err := start(uid, gid, environ, "/proc/self/exe", args...)
	if err != nil {
		return outcome{Failure: "the second agent: " + err.Error()}
	}
	defer func() { out.Log = agent.end("agent") + out.Log }()
	for {
		if _, err := os.Stat(in.path(socketName)); err == nil {
			break
		}
		if !agent.alive() || !sleep(ctx) {
			out.Error = "the second agent does not serve"
			return out
		}
	}
	second, err := start(uid, gid, nil, in.Envoy, "-c", in.path(bootstrapName), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	if err != nil {
		out.Failure = "the second Envoy: " + err.Error()
		return out
	}
	defer func() { out.Log += second.end("envoy") }()
	out.Dump, out.Error = in.await(ctx, second)
	return out
}

// path returns the path of something in the directory in memory.
func (in *job) path(name string) string { return filepath.Join(in.Dir, name) }

// await returns the config_dump of the second Envoy when it is live and has stayed the same, and otherwise at the end
// of the time, with the reason.
func (in *job) await(ctx context.Context, second *process) (dump json.RawMessage, why string) {
	admin := "unix:" + in.path(adminName)
	const same = 5 // as often it must be the same
	for before, times := "", 0; ; {
		if state, err := envoy.NewAdmin(admin).State(ctx); err != nil || state != envoy.StateLive {
			why = "it did not become LIVE, and is " + state
			if err != nil {
				why = err.Error()
			}
		} else if now, err := dumpOf(ctx, admin); err == nil {
			dump, why = now, ""
			if got, err := parse(now); err == nil {
				if text := fmt.Sprint(got); text == before {
					times++
				} else {
					before, times = text, 0
				}
			}
		}
		if times == same {
			return dump, ""
		}
		if !second.alive() {
			return nil, "it ended"
		}
		if !sleep(ctx) {
			return dump, why
		}
	}
}

// sleep waits a moment, and reports whether there is time left.
func sleep(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(100 * time.Millisecond):
		return true
	}
}

func ownerOf(dir string) (uid, gid uint32, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, 0, err
	}
	st := info.Sys().(*syscall.Stat_t)
	return st.Uid, st.Gid, nil
}

// copyDir copies the regular files of a directory. What an agent writes meanwhile may be copied in part, as after a
// crash, which is what it is written for.
func copyDir(from, to string, uid, gid uint32) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // replaced meanwhile
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case d.IsDir():
			if err := os.Mkdir(target, 0o700); err != nil {
				return err
			}
			return os.Chown(target, int(uid), int(gid))
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			if err := os.Symlink(link, target); err != nil {
				return err
			}
			return os.Lchown(target, int(uid), int(gid))
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return write(target, data, uid, gid)
	})
}

func write(path string, data []byte, uid, gid uint32) error {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	return os.Chown(path, int(uid), int(gid))
}

// loopback brings up the only interface of the sandbox.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// process is the second agent or Envoy.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	// said is the end of what it wrote.
	mu   sync.Mutex
	said []byte
}

// maxSaid bounds what is kept of the output of a process, in bytes.
const maxSaid = 8 << 10

// start starts a program as another user. Its output is a pipe that belongs to that user, so that it can open
// /dev/stdout, as access logs do.
func start(uid, gid uint32, environ []string, program string, args ...string) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close() //nolint:errcheck // the process has it
	if err := w.Chown(int(uid), int(gid)); err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Env = environ
	p.cmd.Stdout, p.cmd.Stderr = w, w
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	var read sync.WaitGroup
	read.Go(func() { p.read(r) })
	go func() {
		_ = p.cmd.Wait() // how it ended is in what it said
		read.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) read(r io.ReadCloser) {
	defer r.Close() //nolint:errcheck // it was read to the end
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		p.mu.Lock()
		p.said = append(p.said, buf[:n]...)
		p.said = p.said[max(0, len(p.said)-maxSaid):]
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// end ends the process, and returns what it said, each line after a name.
func (p *process) end(name string) string {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
	var b strings.Builder
	for line := range strings.Lines(string(p.said)) {
		fmt.Fprintf(&b, "  %s: %s\n", name, strings.TrimRight(line, "\n"))
	}
	return b.String()
}
