package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/aymanbagabas/go-udiff"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

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
