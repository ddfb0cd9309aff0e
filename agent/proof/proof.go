// Package proof proves that the state on disk is enough: it starts a second agent without a control plane on a copy of
// the state, and an Envoy on that, and compares what this Envoy has with what the running one has.
//
// It promises that neither does anything to anybody: both run in a network of their own, without a way out, with a
// file system to which they cannot write, and in which the sockets of others and the files of access logs are hidden.
// What they write is in memory, and gone with them. It needs Linux and root.
package proof

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Config says what is proven.
type Config struct {
	// StateDir and IdentityDir are the directories of the running agent's state and certificates, "" for none of the
	// second; Socket is the path of its socket for Envoy.
	StateDir, IdentityDir, Socket string
	// Bootstrap is the file of the running Envoy's bootstrap, Admin the address of its admin interface (host:port or
	// unix:PATH), and Envoy the program.
	Bootstrap, Admin, Envoy string
	// Environ are the variables of the second agent, which has the settings of the running one from them.
	Environ []string
	// Timeout bounds the start of the second Envoy; 0 means DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout is longer than Envoy waits for a first answer (15 s).
const DefaultTimeout = 30 * time.Second

// Result is what was found.
type Result struct {
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	// Compared counts what the running Envoy has, by short name of the type.
	Compared map[string]int `json:"compared"`
	// Losses are what the second Envoy does not have, or has otherwise.
	Losses []Loss `json:"losses"`
	// Log has the last lines of both, if something was lost.
	Log string `json:"log,omitempty"`
}

// Loss is a resource that the second Envoy lacks, or the state that it did not reach.
type Loss struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Lost reports whether something was lost.
func (r *Result) Lost() bool { return len(r.Losses) > 0 }

// WriteText writes the result for a person.
func (r *Result) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "A second agent without a control plane, on a copy of the state, and a second Envoy: %.3g s\n", r.Seconds)
	for _, kind := range slices.SortedFunc(maps.Keys(r.Compared), xds.CompareShort) {
		fmt.Fprintf(&b, "  %s: %d compared\n", kind, r.Compared[kind])
	}
	if len(r.Losses) == 0 {
		b.WriteString("\nThe second Envoy has what the running one has.\n")
	} else {
		b.WriteString("\nWhat the second Envoy has not\n")
	}
	for _, l := range r.Losses {
		fmt.Fprintf(&b, "  %s: %s\n", l.What, l.Why)
	}
	if r.Log != "" {
		fmt.Fprintf(&b, "\nWhat both said\n%s", r.Log)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// job is what the process inside the sandbox gets on its standard input.
type job struct {
	Config
	// Dir is an empty directory, over which one in memory is mounted. Rewritten is the bootstrap of the second Envoy.
	Dir       string
	Rewritten []byte
	// Running is the config_dump of the running Envoy, by which it is known what Envoy reads.
	Running json.RawMessage
	// Files and Dirs are hidden: the files by /dev/null, the directories by an empty one.
	Files, Dirs []string
}

// outcome is what the process inside the sandbox says on its standard output.
type outcome struct {
	// Dump is Envoy's config_dump; nil if there is none.
	Dump json.RawMessage `json:"dump"`
	// Error is why there is none, or why it is not complete. Failure is why the sandbox could not be made.
	Error   string `json:"error"`
	Failure string `json:"failure"`
	Log     string `json:"log"`
}

// The names of what the second agent and Envoy use, below the directory in memory.
const (
	socketName    = "xds.sock"
	adminName     = "envoy.sock"
	bootstrapName = "bootstrap.json"
	stateName     = "state"
	identityName  = "identity"
)

// inside is the first argument of the process inside the sandbox.
const inside = "proof-inside"

// Inside runs in the process that Run has started in a sandbox, if this is one.
func Inside(args []string) (code int, is bool) {
	if len(args) != 2 || args[1] != inside {
		return 0, false
	}
	var in job
	out := outcome{}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		out.Failure = err.Error()
	} else {
		out = in.run()
	}
	if json.NewEncoder(os.Stdout).Encode(out) != nil {
		return 1, true
	}
	return 0, true
}

// Run proves it. An error says that it could not be tried.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	began := time.Now()
	if err := possible(); err != nil {
		return nil, err
	}
	var err error
	for _, path := range []*string{&cfg.StateDir, &cfg.IdentityDir, &cfg.Bootstrap, &cfg.Envoy} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, err
		}
	}
	if info, err := os.Stat(cfg.StateDir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("--state-dir: %s: there is no such directory", cfg.StateDir)
	}
	if _, err := exec.LookPath(cfg.Envoy); err != nil {
		return nil, fmt.Errorf("--envoy: %w", err)
	}
	running, err := dumpOf(ctx, cfg.Admin)
	if err != nil {
		return nil, fmt.Errorf("the running Envoy: %w", err)
	}
	dir, err := os.MkdirTemp("", "holdfast-proof-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(dir) //nolint:errcheck // it is empty: what was in it was in memory
	in := job{Config: cfg, Dir: dir, Running: running}
	if in.Rewritten, err = rewrite(cfg.Bootstrap, cfg.Socket, dir); err != nil {
		return nil, fmt.Errorf("--bootstrap: %w", err)
	}
	want, err := parse(running)
	if err != nil {
		return nil, fmt.Errorf("the running Envoy: %w", err)
	}
	in.Files, in.Dirs = hidden(running)
	out, err := runInside(ctx, in)
	if err != nil {
		return nil, err
	}
	if out.Failure != "" {
		return nil, errors.New("in the sandbox: " + out.Failure)
	}
	r := &Result{At: began, Compared: want.counts()}
	var got contents
	if out.Dump != nil {
		if got, err = parse(out.Dump); err != nil {
			return nil, fmt.Errorf("the second Envoy: %w", err)
		}
	}
	r.Losses = compare(want, got)
	if out.Error != "" {
		r.Losses = append([]Loss{{"the second Envoy", out.Error}}, r.Losses...)
	}
	if r.Lost() {
		r.Log = out.Log
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// runInside starts this program in a sandbox.
func runInside(ctx context.Context, in job) (out outcome, err error) {
	text, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, in.Timeout+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", inside)
	cmd.SysProcAttr = namespaces()
	cmd.Stdin = bytes.NewReader(text)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	if errors.Is(err, syscall.EPERM) {
		return out, fmt.Errorf("the kernel, or the container, allows no network and no mounts of its own: run this where root has CAP_SYS_ADMIN (%w)", err)
	}
	if err == nil {
		err = json.Unmarshal(stdout.Bytes(), &out)
	}
	if err != nil {
		return out, fmt.Errorf("in the sandbox: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// rewrite returns a bootstrap as JSON in which the socket of the agent and the admin address are those in dir.
func rewrite(file, socket, dir string) ([]byte, error) {
	data, err := userfile.Read(file)
	if err != nil {
		return nil, err
	}
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, errors.New("it is no mapping of bootstrap fields")
	}
	found := 0
	walk(tree, func(object map[string]any) {
		if pipe, ok := object["pipe"].(map[string]any); ok {
			if path, ok := pipe["path"].(string); ok && filepath.Clean(path) == filepath.Clean(socket) {
				pipe["path"] = filepath.Join(dir, socketName)
				found++
			}
		}
	})
	if found == 0 {
		return nil, fmt.Errorf("%s does not lead to the agent's socket %s: give the agent's --socket", file, socket)
	}
	tree["admin"] = map[string]any{"address": map[string]any{"pipe": map[string]any{"path": filepath.Join(dir, adminName)}}}
	return json.Marshal(tree)
}

// walk calls f with every object of a tree of JSON.
func walk(tree any, f func(object map[string]any)) {
	switch tree := tree.(type) {
	case map[string]any:
		f(tree)
		for _, value := range tree {
			walk(value, f)
		}
	case []any:
		for _, value := range tree {
			walk(value, f)
		}
	}
}

// hidden returns the files of access logs and the directories of the Unix sockets that Envoy listens on.
func hidden(dump json.RawMessage) (files, dirs []string) {
	var tree map[string]any
	if json.Unmarshal(dump, &tree) != nil {
		return nil, nil // parse reports it
	}
	walk(tree, func(object map[string]any) {
		if path, ok := object["path"].(string); ok && strings.HasSuffix(fmt.Sprint(object["@type"]), ".FileAccessLog") && !strings.HasPrefix(path, "/dev/") {
			files = append(files, path)
		}
		if listener, ok := object["listener"].(map[string]any); ok {
			if address, ok := listener["address"].(map[string]any); ok {
				if pipe, ok := address["pipe"].(map[string]any); ok {
					dirs = append(dirs, filepath.Dir(fmt.Sprint(pipe["path"])))
				}
			}
		}
	})
	slices.Sort(files)
	slices.Sort(dirs)
	return slices.Compact(files), slices.Compact(dirs)
}
