package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// limit bounds every wait for something that should happen at once or nearly so.
const limit = 30 * time.Second

// debian is a copy of a Debian's root, which a test may change.
func debian(t testing.TB) string {
	t.Helper()
	from := filepath.Join(root(t), ".peers", "debian-root")
	if _, err := os.Stat(from); err != nil {
		t.Fatalf("%v: run test/release/packages, which `make test-release` does", err)
	}
	dir, err := os.MkdirTemp("", "holdfast-machine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	run(t, "cp", "-a", "--reflink=auto", from+"/.", dir)
	return dir
}

// install puts files into a root.
func install(t testing.TB, dir string, files ...string) {
	t.Helper()
	for _, file := range files {
		run(t, "install", "-D", "-m", "0755", file, filepath.Join(dir, "root", filepath.Base(file)))
	}
}

// machine is a Debian with systemd as its first process, in namespaces of its own: it has its own processes, mounts and
// loopback device.
type machine struct {
	testing.TB
	dir  string
	log  string
	init int // the pid of its systemd
}

// boot mounts what systemd wants below the root in $1, and becomes its first process. The cgroups are a tree of its own.
const boot = `
set -e
cd "$1"
mount --make-rprivate /
mount --bind . .
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=0755 tmpfs dev
for f in null zero full random urandom tty; do touch dev/$f; mount --bind /dev/$f dev/$f; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir -p "sys/fs/cgroup$2"
mount --bind "sys/fs/cgroup$2" sys/fs/cgroup
echo $$ > sys/fs/cgroup/cgroup.procs
ip link set lo up
pivot_root . mnt
exec env -i container=holdfast-test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . sh -c 'umount -l /mnt && exec /lib/systemd/systemd --log-target=journal --show-status=no --unit=multi-user.target'
`

// start boots a root.
func start(t testing.TB, dir string) *machine {
	t.Helper()
	for _, unit := range []string{"systemd-networkd-wait-online.service", "systemd-timesyncd.service", "getty.target", "console-getty.service"} {
		_ = os.Symlink("/dev/null", filepath.Join(dir, "etc/systemd/system", unit)) // nothing of it is of use here
	}
	// Where the tests may not raise the limit of open files, systemd may not do so for its services either.
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "etc/systemd/system/service.d/files.conf"), fmt.Sprintf("[Service]\nLimitNOFILE=%d\n", files.Max))
	log := filepath.Join(work, filepath.Base(dir)+".log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	group := "/holdfast-" + filepath.Base(dir)
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--net", "bash", "-c", boot, "boot", dir, group)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it, by --kill-child, the first process, and so everything in the machine
		_ = cmd.Wait()
		_ = out.Close()
	})
	m := &machine{TB: t, dir: dir, log: log}
	m.eventually(func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(string(children), &m.init); err != nil {
			return err
		}
		state, err := m.try("systemctl", "is-system-running")
		if s := strings.TrimSpace(state); s != "running" && s != "degraded" {
			return fmt.Errorf("systemd is %s, %v; its log:\n%s", s, err, tail(log))
		}
		return nil
	})
	return m
}

func tail(file string) string {
	text, _ := os.ReadFile(file)
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

func (m *machine) eventually(condition func() error) {
	m.Helper()
	if err := testbed.Eventually(limit, condition); err != nil {
		m.Fatalf("%v\n%s", err, m.journal())
	}
}

// try runs a command in the machine.
func (m *machine) try(args ...string) (string, error) {
	cmd := exec.Command("nsenter", append([]string{"--target", fmt.Sprint(m.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wdns=/", "--",
		"env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// does runs a command in the machine, which must succeed.
func (m *machine) does(args ...string) string {
	m.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.Fatalf("%s: %v\n%s\n%s", strings.Join(args, " "), err, out, m.journal())
	}
	return out
}

// processes are the files in /proc of the machine's processes of these names.
func (m *machine) processes(names ...string) string {
	m.Helper()
	// A process may end while grep looks at it, which is no error.
	return m.does("sh", "-c", `grep -slxF "$0" /proc/[0-9]*/comm || true`, strings.Join(names, "\n"))
}

func (m *machine) journal() string {
	out, _ := m.try("journalctl", "--no-pager", "--boot", "-n", "60")
	return tail(m.log) + "\n" + out
}

// property is what systemd says of a unit.
func (m *machine) property(unit, name string) string {
	m.Helper()
	return strings.TrimSpace(m.does("systemctl", "show", "--property="+name, "--value", unit))
}

// active waits until a unit is in a state, such as active or inactive.
func (m *machine) active(unit, state string) {
	m.Helper()
	m.eventually(func() error {
		if got := m.property(unit, "ActiveState"); got != state {
			return fmt.Errorf("%s is %s, want %s\n%s", unit, got, state, m.journal())
		}
		return nil
	})
}

// get asks for the page of the mesh's service, from the machine's loopback device.
func (m *machine) get() error {
	out, err := exec.Command("nsenter", "--target", fmt.Sprint(m.init), "--net", "--", "curl", "-sS", "--max-time", "5", "-H", "Host: hello.internal", "http://127.0.0.1:8000/").CombinedOutput()
	if err != nil || string(out) != "hello" {
		return fmt.Errorf("%v: %s", err, out)
	}
	return nil
}

// traffic sends requests one after the other until stop is called, which returns how many there were.
func (m *machine) traffic() (stop func() int) {
	done, ended := make(chan struct{}), make(chan struct{})
	sent := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := m.get(); err != nil {
				m.Errorf("request %d: %v", sent, err)
				return
			}
			sent++
		}
	}()
	return func() int {
		close(done)
		<-ended
		return sent
	}
}
