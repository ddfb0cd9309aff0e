package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

func TestABadConfigurationIsRefusedBeforeAnythingStarts(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"no upstream":               {Config{}, "no upstream: name at least one with --upstream"},
		"one twice":                 {Config{Upstreams: []string{"a:1", "b:1", "a:1"}}, "--upstream a:1 is given twice"},
		"a bad address":             {Config{Upstreams: []string{"a:1", "nonsense"}}, `upstream "nonsense": want host:port, unix:PATH, dns:///HOST:PORT, http(s)://HOST or file:DIR`},
		"a bad port":                {Config{Upstreams: []string{"a:http"}}, `upstream "a:http": port "http" is not a number`},
		"an unknown scheme":         {Config{Upstreams: []string{"ftp://a:1"}}, "unknown scheme"},
		"file: without a directory": {Config{Upstreams: []string{"file:"}}, `upstream "file:": the directory is missing`},
		"settings of TLS that contradict": {
			Config{Upstreams: []string{"a:1"}, Upstream: upstream.Config{Security: dial.Security{Plaintext: true, CA: "x"}}}, "--upstream-ca has no meaning"},
		"a bad admin address":  {Config{Upstreams: []string{"a:1"}, Admin: admin.Config{Addr: "x"}}, `--admin: "x": want unix:PATH or host:port`},
		"profiles over TCP":    {Config{Upstreams: []string{"a:1"}, Admin: admin.Config{Addr: "127.0.0.1:1", Pprof: true}}, "--pprof: profiles are served on a Unix socket only"},
		"a bad health address": {Config{Upstreams: []string{"a:1"}, Admin: admin.Config{Health: "unix:/x"}}, "--health: "},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// A part that cannot start ends the others, and the reason is returned and logged.
func TestAnAgentThatCannotServeEndsWithTheReason(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	taken := filepath.Join(dir, "taken")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Close() })
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"the socket":         {Config{Socket: downstream.SocketConfig{Path: taken}}, "there is a file at this path"},
		"the admin socket":   {Config{Admin: admin.Config{Addr: "unix:" + taken}}, "--admin: socket " + taken},
		"the admin address":  {Config{Admin: admin.Config{Addr: busy.Addr().String()}}, "--admin: "},
		"the health address": {Config{Admin: admin.Config{Health: busy.Addr().String()}}, "--health: "},
		"one path for both":  {Config{Admin: admin.Config{Addr: "unix:" + filepath.Join(dir, "xds.sock")}}, "choose another path"},
	} {
		t.Run(name, func(t *testing.T) {
			log := &recorded{}
			tc.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
			tc.cfg.Upstreams = []string{"file:" + dir}
			if tc.cfg.Socket.Path == "" {
				tc.cfg.Socket.Path = filepath.Join(dir, "xds.sock")
			}
			a, err := New(tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ended with %v, want %s", err, tc.want)
			}
			if _, err := os.Lstat(filepath.Join(dir, "xds.sock")); err == nil {
				t.Error("the socket is still there")
			}
			if strings.Contains(log.String(), "level=ERROR") { // the command prints it
				t.Errorf("said twice:\n%s", log)
			}
		})
	}
}

// A directory that is not there yet is a reason not to be ready, and no more.
func TestADirectoryMayComeLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	bubble.Test(t, func(t *testing.T) {
		r := &rig{T: t, form: xdstest.Delta, cp: xdstest.New(xdstest.Config{}), down: &xdstest.Pipe{}, up: &xdstest.Pipe{}}
		r.cfg = Config{Upstreams: []string{"file:" + dir}, Node: node("web-1")}
		r.start()
		r.pass(time.Minute)
		r.ready(map[string]string{"socket": "", "configuration": "upstream file:" + dir + ": file:" + dir + ": read directory: open " + dir + ": no such file or directory"})
		c := r.client(xdstest.ClientConfig{Node: node("web-1")})
		c.Subscribe(xds.ClusterType)
		r.pass(time.Minute)
		if got := c.Responses(); len(got) > 0 {
			t.Errorf("the client was told %s (design.md I1)", got)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		content := "\"@type\": " + xds.ClusterType + "\nname: c1\nconnect_timeout: 1s\n"
		if err := os.WriteFile(filepath.Join(dir, "c1.yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r.pass(upstream.DefaultMaxBackoff + 2*time.Second)
		r.holds(c, xds.ClusterType, "c1")
		r.ready(map[string]string{"socket": "", "configuration": ""})
		r.close()
	})
}

// The socket is there while the agent runs, and goes with it; it is guarded.
func TestTheSocketComesAndGoesWithTheAgent(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "xds.sock")
	started := make(chan string, 1)
	log := &recorded{look: func(line string) {
		if strings.Contains(line, `msg="serving xDS"`) {
			started <- line
		}
	}}
	a, err := New(Config{
		Upstreams: []string{"file:" + dir}, Socket: downstream.SocketConfig{Path: path},
		Peers: downstream.Peers{UIDs: []uint32{4711}, GIDs: []uint32{4712}},
		Log:   slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	if line, want := <-started, fmt.Sprintf(`uids="[4711 %d]" gids=[4712]`, os.Geteuid()); !strings.Contains(line, want) {
		t.Errorf("who may use the socket: %s, want %s", line, want)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there")
	}
}
