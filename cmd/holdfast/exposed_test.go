package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/agent/controlplane"
)

func TestWhatIsOpenToOthersIsSaidOnceAtTheStart(t *testing.T) {
	loose, tight := filepath.Join(t.TempDir(), "loose"), filepath.Join(t.TempDir(), "tight")
	for path, mode := range map[string]os.FileMode{loose: 0o644, tight: 0o600} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	caDir := t.TempDir()
	if err := os.Symlink(loose, filepath.Join(caDir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	identityDir := t.TempDir()
	if err := os.Mkdir(filepath.Join(identityDir, "default"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(loose, filepath.Join(identityDir, "default", "tls.key")); err != nil {
		t.Fatal(err)
	}
	const clear, credentials = "plaintext connection to the control plane", "credentials are sent in plaintext"
	for _, tc := range []struct {
		name string
		args []string
		want []string // one line each
	}{
		{"TLS", []string{"--upstream", "192.0.2.1:443", "--upstream-header", "authorization=x"}, nil},
		{"plaintext on this machine", []string{"--upstream", "127.0.0.1:1", "--upstream", "[::1]:1", "--upstream", "localhost:1", "--upstream", "unix:/x", "--upstream", "http://127.0.0.1:1/x",
			"--upstream", "dns:///localhost:1", "--upstream-plaintext", "--upstream-header", "authorization=x"}, nil},
		{"plaintext", []string{"--upstream", "192.0.2.1:80", "--upstream", "127.0.0.1:1", "--upstream-plaintext"}, []string{clear + `|upstreams=192.0.2.1:80`}},
		{"plaintext, by name", []string{"--upstream", "http://xds.test/x", "--upstream", "dns:///xds.test:1", "--upstream-plaintext"}, []string{clear + `|upstreams="http://xds.test/x, dns:///xds.test:1"`}},
		{"credentials", []string{"--upstream", "xds.test:80", "--upstream-plaintext", "--upstream-header", "x-consul-token=TOPSECRET", "--upstream-header", "Authorization=TOPSECRET", "--upstream-header", "ClusterID=x", "--upstream-token-file", tight},
			[]string{clear, credentials + `|credentials="--upstream-token-file, --upstream-header Authorization, --upstream-header x-consul-token"`}},
		{"an open admin", []string{"--admin", "0.0.0.0:1"}, []string{"can read the status and all resources|flag=--admin|addr=0.0.0.0:1"}},
		{"an admin on all addresses", []string{"--admin", ":1"}, []string{"can read the status and all resources"}},
		{"a closed admin", []string{"--admin", "127.0.0.1:1"}, nil},
		{"an open REST", []string{"--rest", "[::]:1"}, []string{"can read the configuration|flag=--rest"}},
		{"a closed REST", []string{"--rest", "[::1]:1"}, nil},
		{"a loose key", []string{"--upstream-cert", tight, "--upstream-key", loose}, []string{"every user of this machine can read|flag=--upstream-key|file=" + loose}},
		{"a tight key", []string{"--upstream-cert", loose, "--upstream-key", tight}, nil},
		{"a loose CA key", []string{"--ca", "dir:" + caDir}, []string{"every user of this machine can read|flag=--ca|file=" + caDir + "/ca-key.pem"}},
		{"a loose key of an identity", []string{"--ca", "dev", "--identity-dir", identityDir}, []string{"every user of this machine can read|flag=--identity-dir|default/tls.key"}},
		{"a loose token", []string{"--upstream-token-file", loose}, []string{"every user of this machine can read|flag=--upstream-token-file"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCommand("run", "", "", "")
			f := &runFlags{}
			f.add(c)
			for _, s := range c.sections {
				c.Flags().AddFlagSet(s)
			}
			if err := c.Flags().Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			var err error
			if f.cfg.Certificates, err = f.certificates.config(); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			warnExposed(slog.New(slog.NewTextHandler(&log, nil)), f.cfg)
			wantLines(t, log.String(), tc.want)
		})
	}
	for _, tc := range []struct {
		name string
		cfg  controlplane.Config
		want []string
	}{
		{"on this machine", controlplane.Config{Listen: defaultListen}, nil},
		{"on a socket", controlplane.Config{Listen: "unix:/x"}, nil},
		{"for all, in the clear", controlplane.Config{Listen: ":18000"}, []string{"can read the resources|flag=--listen|addr=:18000"}},
		{"for all, with TLS", controlplane.Config{Listen: ":18000", TLSCert: tight, TLSKey: loose}, []string{"every user of this machine can read|flag=--tls-key"}},
		{"an open admin", controlplane.Config{Listen: defaultListen, Admin: "192.0.2.1:1"}, []string{"can read the status and all resources|flag=--admin"}},
	} {
		t.Run("the control plane "+tc.name, func(t *testing.T) {
			var log bytes.Buffer
			warnExposedControlPlane(slog.New(slog.NewTextHandler(&log, nil)), tc.cfg)
			wantLines(t, log.String(), tc.want)
		})
	}
}

// wantLines sees that a log has these lines, each with all its parts, and no secret.
func wantLines(t *testing.T, log string, want []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	if log == "" {
		lines = nil
	}
	if len(lines) != len(want) || strings.Contains(log, "TOPSECRET") {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), log)
	}
	for i, parts := range want {
		for part := range strings.SplitSeq(parts, "|") {
			if !strings.Contains(lines[i], part) || !strings.Contains(lines[i], "level=WARN") {
				t.Errorf("no %q in %s", part, lines[i])
			}
		}
	}
}
