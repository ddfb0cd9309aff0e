package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// A target is what stands between the client and the control plane.
type target struct {
	name string
	// argv makes the command of its process; nil: there is none.
	argv func(w wiring) []string
	// agent: it ends xDS on both sides, so that it may have state, serve while the
	// control plane is away, and translate between the forms.
	agent bool
	// admin: it serves /metrics on wiring.admin.
	admin bool
	// tcp: the control plane listens on a TCP port of loopback, else on a Unix socket.
	tcp bool
	// profile says whether it is profiled, for which it serves profiles there too.
	profile profiling
}

// wiring is where a process listens, and how it reaches the control plane.
type wiring struct {
	socket, upstream, admin string
	form                    form // of the control plane
	state                   string
	flags                   []string // further ones of holdfast
}

var direct = target{name: "direct"}

// helperTarget is one of helpers.
func helperTarget(name string) (target, error) {
	self, err := os.Executable()
	return target{name: name, argv: func(w wiring) []string {
		return []string{self, name, w.socket, w.upstream}
	}}, err
}

func holdfastTarget(binary string, profile profiling) target {
	return target{name: "holdfast", agent: true, admin: true, profile: profile, argv: func(w wiring) []string {
		argv := []string{binary, "run", "--upstream", holdfastAddress(w.upstream), "--upstream-plaintext", "--upstream-protocol", string(w.form),
			"--socket", w.socket, "--admin", "unix:" + w.admin, "--health", "", "--state-dir", w.state, "--log-level", "warn"}
		argv = append(argv, w.flags...)
		if profile.dir != "" {
			argv = append(argv, "--pprof") // which binaries to compare with may not know
		}
		return argv
	}}
}

// controlPlane returns the address of the control plane of a target.
func (t target) controlPlane(dir string) string {
	if t.tcp {
		return "127.0.0.1:0"
	}
	return filepath.Join(dir, "cp.sock")
}

// holdfastAddress returns the address of a control plane as holdfast takes it.
func holdfastAddress(addr string) string {
	if network(addr) == "unix" {
		return "unix:" + addr
	}
	return addr
}

// commandTarget is an agent that a person names: NAME=COMMAND, whose words may
// contain {socket}, {upstream}, {admin}, {form} and {dir}.
func commandTarget(spec string) (target, error) {
	name, command, ok := strings.Cut(spec, "=")
	words := strings.Fields(command)
	if !ok || name == "" || len(words) == 0 || !strings.Contains(command, "{socket}") || !strings.Contains(command, "{upstream}") {
		return target{}, fmt.Errorf("-agent %q: want NAME=COMMAND, with {socket} and {upstream} in the command", spec)
	}
	return target{name: name, agent: true, argv: func(w wiring) []string {
		r := strings.NewReplacer("{socket}", w.socket, "{upstream}", w.upstream, "{admin}", w.admin,
			"{form}", string(w.form), "{dir}", filepath.Dir(w.socket))
		argv := make([]string, len(words))
		for i, word := range words {
			argv[i] = r.Replace(word)
		}
		return argv
	}}, nil
}

// instance is a running target.
type instance struct {
	target
	wiring
	socket     string // where clients go
	begun      time.Time
	proc       *testbed.Process // nil for direct
	endProfile func()
}

// start starts a target in a directory.
func (t target) start(dir, upstream string, f form, state string, flags []string) (*instance, error) {
	in := &instance{target: t, socket: upstream}
	if t.argv == nil {
		return in, nil
	}
	in.wiring = wiring{socket: filepath.Join(dir, t.name+".sock"), upstream: upstream, admin: filepath.Join(dir, "admin.sock"), form: f, state: state, flags: flags}
	in.socket = in.wiring.socket
	_ = os.Remove(in.socket) // of an instance before
	in.begun = time.Now()
	var err error
	in.proc, err = testbed.Start(t.name, filepath.Join(dir, t.name+".log"), t.argv(in.wiring)...)
	if err != nil {
		return nil, err
	}
	in.endProfile = t.profile.begin(in.wiring.admin)
	return in, nil
}

// ready waits until somebody listens.
func (in *instance) ready(limit time.Duration) error {
	dial := func() error { return testbed.Dial(network(in.socket), in.socket) }
	if in.proc == nil {
		return testbed.Eventually(limit, dial)
	}
	return in.proc.Wait(limit, dial)
}

// stop ends the process: with SIGTERM where it has state to write.
func (in *instance) stop() {
	if in.proc == nil {
		return
	}
	in.endProfile()
	if in.state != "" {
		_ = in.proc.Stop(10 * time.Second)
	} else {
		in.proc.Kill()
	}
}

// explain adds what the process said to an error.
func (in *instance) explain(err error) error {
	if err == nil || in.proc == nil {
		return err
	}
	if dead := in.proc.Alive(); dead != nil {
		return fmt.Errorf("%w; %w", err, dead)
	}
	if tail := in.proc.Tail(5); tail != "" {
		return fmt.Errorf("%w\n--- end of %s's log:\n%s", err, in.name, tail)
	}
	return err
}
