package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// waitFlags are the flags of what to wait for.
type waitFlags struct {
	conditions []string
	timeout    time.Duration
}

func (f *waitFlags) add(flags *pflag.FlagSet) {
	flags.Var(texts(&f.conditions), "wait-for", "`WHAT` to wait for before anything is written: pod-ip (given, or of a network interface), token=FILE (not empty), file=PATH, socket (the agent listens on --socket) or socket=PATH; several with commas, or repeated")
	flags.Var(numberOf(&f.timeout, time.Minute, positive), "wait-timeout", "maximum time to wait (`DURATION`); then the command exits with code 1 and reports what is missing")
}

// wait returns when all conditions hold. It returns ips, the given addresses of the pod; if there
// are none and the conditions include pod-ip, the addresses of the machine.
func (f *waitFlags) wait(ctx context.Context, progress io.Writer, socket string, ips []netip.Addr, family bootstrap.Family) ([]netip.Addr, error) {
	var conditions []bootstrap.Condition
	for _, all := range f.conditions {
		for name := range strings.SplitSeq(all, ",") {
			c, err := condition(strings.TrimSpace(name), socket, &ips, family)
			if err != nil {
				return nil, err
			}
			conditions = append(conditions, c)
		}
	}
	if len(conditions) == 0 {
		return ips, nil
	}
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	err := bootstrap.Wait(limited, conditions, func(name string, missing error) {
		if missing != nil {
			_, _ = fmt.Fprintf(progress, "holdfast: waiting for %s: %v\n", name, missing)
		} else {
			_, _ = fmt.Fprintf(progress, "holdfast: %s found\n", name)
		}
	})
	switch {
	case err == nil:
		return ips, nil
	case ctx.Err() != nil:
		return nil, failed(fmt.Errorf("interrupted while waiting for:\n%w", err))
	default:
		return nil, failed(fmt.Errorf("still missing after %s (--wait-timeout):\n%w", f.timeout, err))
	}
}

// condition parses one condition. pod-ip stores the addresses that it finds in ips.
func condition(name, socket string, ips *[]netip.Addr, family bootstrap.Family) (bootstrap.Condition, error) {
	kind, path, hasPath := strings.Cut(name, "=")
	switch {
	case kind == "pod-ip" && !hasPath:
		return bootstrap.Condition{Name: name, Missing: func(context.Context) error {
			return podIPs(ips, family)
		}}, nil
	case kind == "token" && path != "":
		return bootstrap.FileThere(name, path, true), nil
	case kind == "file" && path != "":
		return bootstrap.FileThere(name, path, false), nil
	case kind == "socket" && !hasPath:
		return bootstrap.SocketThere(name, socket), nil
	case kind == "socket" && path != "":
		return bootstrap.SocketThere(name, path), nil
	}
	return bootstrap.Condition{}, fmt.Errorf("--wait-for %q: want pod-ip, token=FILE, file=PATH, socket or socket=PATH", name)
}

// podIPs returns nil if ips has an address of the family. If ips is empty, it looks at the network
// interfaces, and stores their addresses in ips if one is of the family.
func podIPs(ips *[]netip.Addr, family bootstrap.Family) error {
	found := *ips
	if len(found) == 0 {
		var err error
		if found, err = interfaceIPs(); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(found, family.Has) {
		*ips = found
		return nil
	}
	if len(found) == 0 {
		return errors.New("none is given, and no network interface has one")
	}
	return fmt.Errorf("%v has no address of the family %s (--ip-family)", found, family)
}

// write writes the bootstrap in the requested forms. Nothing is written unless all checks pass.
func (f *bootstrapFlags) write(ctx context.Context, c *command, made *bootstrapv3.Bootstrap) error {
	format := bootstrap.YAML
	if f.out != "" && f.out != "-" {
		var err error
		if format, err = bootstrap.FormatOf(f.out); err != nil {
			return err
		}
	}
	text, err := bootstrap.Encode(made, format)
	if err != nil {
		return failed(err)
	}
	if f.validate {
		if err := f.askEnvoy(ctx, c, text, format); err != nil {
			return failed(err)
		}
	}
	switch {
	case f.diff:
		return f.showDiff(c, string(text))
	case f.print || f.out == "-":
		if _, err := c.OutOrStdout().Write(text); err != nil || f.print {
			return failed(err)
		}
	}
	if err := f.writeOthers(); err != nil || f.out == "" || f.out == "-" {
		return err
	}
	if why := bootstrap.Sensitive(made); why != "" && f.mode&0o077 != 0 {
		warn(c, []string{fmt.Sprintf("%s can be read by other users (--out-mode %04o), and it contains %s: use --out-mode 0600", f.out, f.mode, why)})
	}
	return failed(bootstrap.Write(f.out, text, f.mode))
}

// writeOthers writes the files for gRPC and with the arguments.
func (f *bootstrapFlags) writeOthers() error {
	if f.grpcOut != "" {
		text, err := bootstrap.GRPC(f.cfg)
		if err != nil {
			return err
		}
		if err := bootstrap.Write(f.grpcOut, text, bootstrapMode); err != nil {
			return failed(err)
		}
	}
	if f.argsOut == "" {
		return nil
	}
	text, err := f.args.Text()
	if err != nil {
		return err
	}
	return failed(bootstrap.Write(f.argsOut, text, bootstrapMode))
}

// askEnvoy lets the Envoy of --envoy-binary, or else one in PATH, check the bootstrap.
func (f *bootstrapFlags) askEnvoy(ctx context.Context, c *command, text []byte, format bootstrap.Format) error {
	name := f.envoy
	if name == "" {
		name = "envoy"
	}
	binary, err := exec.LookPath(name)
	if err != nil {
		if f.envoy != "" {
			return fmt.Errorf("--envoy-binary: %w", err)
		}
		warn(c, []string{"--validate: there is no envoy in PATH (name one with --envoy-binary): only the rules of its API were checked, as far as they are known without Envoy"})
		return nil
	}
	dir := ""
	if f.out != "" && f.out != "-" {
		dir = filepath.Dir(f.out) // where an init container may write, if anywhere
	}
	return bootstrap.CheckWithEnvoy(ctx, binary, text, format, dir)
}

// showDiff shows how the existing file would change.
func (f *bootstrapFlags) showDiff(c *command, text string) error {
	name := f.out
	before, err := userfile.Read(f.out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		name = os.DevNull
	case err != nil:
		return failed(fmt.Errorf("--diff: %w", err))
	}
	diff := udiff.Unified(name, f.out, string(before), text)
	if diff == "" {
		return nil
	}
	if _, err := fmt.Fprint(c.OutOrStdout(), diff); err != nil {
		return failed(err)
	}
	return failed(fmt.Errorf("%s would change", f.out))
}
