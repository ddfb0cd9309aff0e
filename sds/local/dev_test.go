package local_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const madeForDevelopment = "roots development authority, not for production"

// dev returns an authority for development that is not run yet.
func dev(t *testing.T, dir string) *bench {
	t.Helper()
	b := &bench{T: t}
	d, err := local.OpenDev(dir, pkitest.Domain, time.Now, b.logger())
	check(t, err)
	b.authority = d
	return b
}

func TestAuthorityForDevelopmentIsMadeInMemory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := dev(t, "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.authority.Issue(ctx, request(t)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before it is run: %v", err)
		}
		b.run()
		b.expectCalls(madeForDevelopment)
		b.logged("whoever reads its key can impersonate every workload", 1)
		roots := b.issue(nil).Roots
		b.issue(roots)
		check(t, b.end())

		again := dev(t, "")
		again.run()
		if same(again.issue(nil).Roots, roots) {
			t.Error("the next one is the same")
		}
		check(t, again.end())
	})
}

func TestAuthorityForDevelopmentIsSharedByAllWhoNameItsDirectory(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
	}{
		{"it does not exist, nor the one above", func(*testing.T, string) {}},
		{"it is empty, as a volume is", func(t *testing.T, dir string) { check(t, os.MkdirAll(dir, 0o755)) }},
		{"somebody has stopped before all was written", func(t *testing.T, dir string) {
			half := filepath.Join(dir, "..dev-ca-1")
			check(t, os.MkdirAll(half, 0o700))
			check(t, os.WriteFile(filepath.Join(half, "ca-key.pem"), nil, 0o600))
		}},
		{"somebody has stopped before all was linked", func(t *testing.T, dir string) {
			before := dev(t, dir)
			before.run()
			check(t, before.end())
			for _, name := range []string{"ca-cert.pem", "ca-key.pem"} {
				check(t, os.Remove(filepath.Join(dir, name)))
			}
		}},
	} {
		for round := range 5 {
			t.Run(fmt.Sprint(tc.name, " ", round), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					dir := filepath.Join(pkitest.NewVolume(t).Dir, "above", "ca")
					tc.prepare(t, dir)
					var agents []*bench
					for range 4 {
						agents = append(agents, dev(t, dir))
					}
					for _, b := range agents {
						b.start()
					}
					synctest.Wait()
					agents[0].advance()
					roots := agents[0].issue(nil).Roots
					for _, b := range agents {
						b.expectCalls(madeForDevelopment)
						b.issue(roots)
						check(t, b.end())
					}
					key, err := filepath.EvalSymlinks(filepath.Join(dir, "ca-key.pem"))
					check(t, err)
					if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
						t.Errorf("mode of the key: %v, %v", info.Mode(), err)
					}

					restarted := dev(t, dir)
					restarted.run()
					restarted.advance()
					restarted.issue(roots)
					check(t, restarted.end())
				})
			})
		}
	}
}

func TestAuthorityForDevelopmentLeavesFilesOfOthersAlone(t *testing.T) {
	for _, tc := range []struct {
		name string
		file string
	}{
		{"a file", "notes.txt"},
		{"a key without its certificate", "ca-key.pem"},
		{"a secret", "tls.crt"},
		{"a directory", "sub/file"},
		{"a hidden file", ".hidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				dir := pkitest.NewVolume(t).Dir
				check(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, tc.file)), 0o755))
				check(t, os.WriteFile(filepath.Join(dir, tc.file), nil, 0o600))
				b := dev(t, dir)
				b.run()
				err := b.end()
				if err == nil || !strings.Contains(err.Error(), "development authority in "+dir+": the directory has other files but no ca-cert.pem") {
					t.Errorf("Run returned %v", err)
				}
				b.expectCalls()
				if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
					t.Errorf("there are %v, %v", entries, err)
				}
			})
		})
	}
}

func TestAuthorityThatIsThereIsUsedForDevelopmentAsItIs(t *testing.T) {
	for _, tc := range []struct {
		name    string
		publish func(t *testing.T, v *pkitest.Volume, files content)
	}{
		{"of kubelet", func(t *testing.T, v *pkitest.Volume, files content) { v.Publish(t, files) }},
		{"of a person", func(t *testing.T, v *pkitest.Volume, files content) {
			for name, text := range files {
				check(t, os.WriteFile(filepath.Join(v.Dir, name), text, 0o600))
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v, root := pkitest.NewVolume(t), pkitest.Root(t, "root", time.Now())
				// Without a chain, which must not be added: the volume may be read-only.
				tc.publish(t, v, with(istio(root), "cert-chain.pem", nil))
				b := dev(t, v.Dir)
				b.run()
				b.advance()
				b.expectCalls("roots root")
				b.issue(root.Roots())
				check(t, b.end())
				if _, err := os.Lstat(filepath.Join(v.Dir, "cert-chain.pem")); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("something was added: %v", err)
				}
			})
		})
	}
}

func TestAuthorityForDevelopmentThatCannotBeKeptEndsItsRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		file := filepath.Join(pkitest.NewVolume(t).Dir, "file")
		check(t, os.WriteFile(file, nil, 0o600))
		b := dev(t, filepath.Join(file, "ca"))
		b.run()
		if err := b.end(); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("Run returned %v", err)
		}
		b.expectCalls()
	})
}

func TestKeyOfAnAuthorityIsInNoLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v, root := pkitest.NewVolume(t), pkitest.Root(t, "root", time.Now())
		v.Publish(t, istio(root))
		b := dev(t, v.Dir)
		b.run()
		b.advance()
		b.issue(root.Roots())
		for line := range strings.Lines(string(pki.EncodeKey(root.Key))) {
			b.logged(strings.TrimSpace(line), 0)
		}
		check(t, b.end())
	})
}
