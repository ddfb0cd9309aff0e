package sds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

func TestANameIsOwnedOrIsTheUpstreams(t *testing.T) {
	with := func(ca string) *Manager {
		m, err := New(Config{
			Sources: []SourceConfig{{CA: ca, Identities: []Identity{identified(workload)}}}, Aliases: map[string]string{"web": "default"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	dev, spire := with("dev"), with("spire:unix:/run/spire.sock")
	none, err := New(Config{SecretDirs: []string{"/etc/certs"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name             string
		dev, spire, none bool
	}{
		{"default", true, true, false},
		{"ROOTCA", true, true, false},
		{"ALL", true, true, false},
		{"web", true, true, false},
		{workload, true, true, false},
		{"spiffe://mesh.test", true, true, false},
		{"spiffe://mesh.test/ns/shop/sa/other", false, true, false},
		{"spiffe://other.test", false, true, false},
		{"file-cert:/etc/certs/a~/etc/certs/b", true, true, true},
		{"file-cert:rubbish", true, true, true},
		{"file-root:system", true, true, true},
		{"kubernetes://shop-tls", false, false, false},
		{"", false, false, false},
	} {
		if a, b, c := dev.Owns(tc.name), spire.Owns(tc.name), none.Owns(tc.name); a != tc.dev || b != tc.spire || c != tc.none {
			t.Errorf("%q: with dev %v, with spire %v, with directories only %v", tc.name, a, b, c)
		}
	}
}

func TestConfigurationsThatCannotBeMeantAreRefused(t *testing.T) {
	dev := func(ids ...Identity) SourceConfig { return SourceConfig{CA: "dev", Identities: ids} }
	named := func(id, secret string) Identity { return Identity{Names: pki.Names{ID: id}, Secret: secret} }
	for _, tc := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"an unknown kind of source", Config{Sources: []SourceConfig{{CA: "vault:x"}}}, "--ca vault:x: unknown kind: want dir:DIR"},
		{"a source without its place", Config{Sources: []SourceConfig{{CA: "dir:"}}}, "want dir:DIR"},
		{"a relative directory", Config{Sources: []SourceConfig{{CA: "dir:certs"}}}, "the path is relative"},
		{"no identity", Config{Sources: []SourceConfig{{CA: "dir:/ca"}}}, "--identity is missing"},
		{"an identity without a name", Config{Sources: []SourceConfig{dev(Identity{Secret: "x"})}}, `--identity of secret "x" has no name`},
		{"no SPIFFE ID", Config{Sources: []SourceConfig{dev(identified("http://x"))}}, `"http://x" is not a SPIFFE ID`},
		{"two trust domains", Config{Sources: []SourceConfig{dev(named("spiffe://a/x", "a"), named("spiffe://b/x", "b"))}}, "trust domains a and b"},
		{"one secret twice", Config{Sources: []SourceConfig{dev(identified(workload), identified(workload+"2"))}}, `secret "default" is both`},
		{"roots under one name", Config{Sources: []SourceConfig{dev(named("spiffe://a/x", "a")), dev(named("spiffe://b/x", "b"))}}, `secret "ROOTCA" is both`},
		{"a name with a meaning", Config{Sources: []SourceConfig{dev(named(workload, "ALL"))}}, `the name "ALL" is reserved`},
		{"an alias for nothing", Config{Sources: []SourceConfig{dev(identified(workload))}, Aliases: map[string]string{"a": "nothing"}}, "--secret-alias a=nothing: nothing is not a secret of this agent"},
		{"an alias for an alias", Config{Sources: []SourceConfig{dev(identified(workload))}, Aliases: map[string]string{"a": "b", "b": "default"}}, "--secret-alias a=b"},
		{"an alias for a taken name", Config{Sources: []SourceConfig{dev(identified(workload))}, Aliases: map[string]string{"ROOTCA": "default"}}, `secret "ROOTCA" is both`},
		{"an unknown validator", Config{Sources: []SourceConfig{{CA: "dev", Validator: "x"}}}, `--root-validator "x": want trusted-ca or spiffe`},
		{"a relative directory of secrets", Config{SecretDirs: []string{"x"}}, "--secret-dir: "},
		{"a relative directory of identities", Config{IdentityDir: "x"}, "--identity-dir: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestAnAliasIsTheSameUnderAnotherName(t *testing.T) {
	signing(t, func(c *Config) {
		c.Aliases = map[string]string{"web": "default", "istio-roots": "ROOTCA", "me": workload}
	}, func(r *rig) {
		for range 2 {
			for _, alias := range []string{"web", "me"} {
				if p := r.pair(alias); p == nil || !p.Leaf().Equal(r.checkCertificate().Leaf()) {
					t.Errorf("%s is not the certificate in use", alias)
				}
			}
			r.wait(14 * time.Hour)
		}
		if !same(r.roots("istio-roots"), r.roots("ROOTCA")) {
			t.Error("the alias of the roots has others")
		}
	})
}

// files writes a certificate and its key, and returns the name that refers to them.
func (r *rig) files(dir string) (name string, leaf *pki.Pair) {
	r.Helper()
	key, err := pki.ECDSAP256.Generate()
	if err != nil {
		r.Fatal(err)
	}
	answer, err := r.ca.authority.Sign(pki.Request{Key: key, Names: pki.Names{DNS: []string{"shop.test"}}, Lifetime: 48 * time.Hour}, r.now())
	if err != nil {
		r.Fatal(err)
	}
	p := &pki.Pair{Key: key, Chain: answer.Chain}
	cert, keyFile := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	r.write(cert, p.ChainPEM())
	r.write(keyFile, p.KeyPEM())
	return "file-cert:" + cert + "~" + keyFile, p
}

func TestANameOfFilesIsServedAndFollowsThem(t *testing.T) {
	dir := t.TempDir()
	signing(t, func(c *Config) { c.SecretDirs = []string{dir} }, func(r *rig) {
		name, first := r.files(dir)
		r.wait(time.Minute)
		if r.state.secret(name) != nil {
			t.Error("published though nobody asks for it")
		}
		r.state.subscribe([]string{name, "file-root:" + filepath.Join(dir, "roots.pem"), "default"}, nil)
		r.wait(time.Second)
		if p := r.pair(name); p == nil || !p.Leaf().Equal(first.Leaf()) {
			t.Fatal("not published")
		}
		// A name without files does not delay other names.
		if s := r.m.Status(); len(s.Files) != 2 || s.Files[0].Error != "" || s.Files[0].Version == "" || s.Files[1].Error == "" {
			t.Errorf("%+v", s.Files)
		}
		// A certificate is not used before its key is there.
		_, second := r.files(dir)
		r.write(filepath.Join(dir, "k.pem"), first.KeyPEM())
		r.wait(time.Minute)
		if p := r.pair(name); !p.Leaf().Equal(first.Leaf()) {
			t.Error("a certificate is used with a key that is not its own")
		}
		if s := r.m.Status(); s.Files[0].Error == "" || !strings.Contains(s.Files[0].Error, "the key is not that of the first certificate") {
			t.Errorf("%+v", s.Files)
		}
		r.write(filepath.Join(dir, "k.pem"), second.KeyPEM())
		r.wait(5 * time.Second)
		if p := r.pair(name); !p.Leaf().Equal(second.Leaf()) {
			t.Error("not renewed")
		}
		// The secret stays when its files are removed.
		r.check(os.Rename(dir, dir+".away"))
		r.wait(time.Hour)
		if p := r.pair(name); p == nil || !p.Leaf().Equal(second.Leaf()) {
			t.Error("the secret went with the files")
		}
		r.check(os.Rename(dir+".away", dir))
		r.write(filepath.Join(dir, "roots.pem"), pki.EncodeCerts(r.ca.authority.Roots()))
		r.wait(5 * time.Second)
		if !same(r.roots("file-root:"+filepath.Join(dir, "roots.pem")), r.ca.authority.Roots()) {
			t.Error("roots that came later are not published")
		}
		// Without a subscription the files are not read.
		r.state.subscribe(nil, []string{name})
		if r.state.secret(name) != nil || len(r.m.Status().Files) != 1 {
			t.Errorf("%+v", r.m.Status().Files)
		}
		r.state.subscribe([]string{name}, nil)
		r.wait(time.Second)
		if p := r.pair(name); p == nil || !p.Leaf().Equal(second.Leaf()) {
			t.Error("not published when it is asked for again")
		}
	})
}

func TestANameLeadsOnlyIntoAllowedDirectories(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	signing(t, func(c *Config) { c.SecretDirs = []string{dir} }, func(r *rig) {
		name, _ := r.files(outside)
		link := filepath.Join(dir, "link")
		r.check(os.Symlink(outside, link))
		through := strings.ReplaceAll(name, outside, link)
		up := strings.ReplaceAll(name, outside, dir+"/../"+filepath.Base(outside))
		r.state.subscribe([]string{name, through, up, "file-cert:", "file-cert:~", "file-root:", "file-root:x"}, nil)
		r.wait(time.Minute)
		for _, n := range []string{name, through, up} {
			if r.state.secret(n) != nil {
				t.Errorf("%s was read", n)
			}
		}
		for _, f := range r.m.Status().Files {
			if f.Error == "" || !strings.Contains(f.Error, "outside the allowed directories") {
				t.Errorf("%+v", f)
			}
		}
	})
}

func TestTheSystemsRootsAreServed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bundle.pem")
	t.Setenv("SSL_CERT_FILE", file)
	signing(t, nil, func(r *rig) {
		r.state.subscribe([]string{"file-root:system"}, nil)
		if s := r.m.Status(); len(s.Files) != 1 || s.Files[0].Error == "" {
			t.Errorf("%+v", s.Files)
		}
		r.state.subscribe(nil, []string{"file-root:system"})
		// Bundles of systems have comments and duplicates.
		one := pki.EncodeCerts(r.ca.authority.Roots())
		r.write(file, append(append([]byte("# Example CA\n"), one...), one...))
		r.state.subscribe([]string{"file-root:system"}, nil)
		r.wait(time.Second)
		if !same(r.roots("file-root:system"), r.ca.authority.Roots()) {
			t.Error("not published")
		}
	})
}

func (r *rig) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func FuzzFileName(f *testing.F) {
	for _, seed := range []string{"file-cert:/a~/b", "file-cert:/a", "file-cert:a~b", "file-cert:/a~/b~/c", "file-cert:/../a~/b", "file-root:/a", "file-root:system", "file-root:", "file-root:/a/", "file-root:/a\x00", "default"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := parseFileSecret(name)
		if !ok {
			return
		}
		// Only the parsed name can be written as this name.
		back := fileCertPrefix + n.cert + "~" + n.key
		switch {
		case n == (fileSecret{}):
			back = systemRoots
		case n.root != "":
			back = fileRootPrefix + n.root
		}
		if back != name {
			t.Errorf("%q reads as %+v, which is %q", name, n, back)
		}
		for _, path := range []string{n.cert, n.key, n.root} {
			if path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0)) {
				t.Errorf("%q leads to %q", name, path)
			}
		}
	})
}
