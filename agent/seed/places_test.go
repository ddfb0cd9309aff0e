package seed

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPlacesAreChecked(t *testing.T) {
	for place, want := range map[string]string{
		"":                         "is empty",
		"http://host/seed":         "use https://",
		"ftp://host/seed":          "want a path or https://",
		"https:///seed":            "want a path or https://",
		"https://u:p@host/seed":    "a user or password in the address",
		"https://host/seed?a=t0p":  "a query or a fragment follows",
		"https://host/seed#a=t0p":  "a query or a fragment follows",
		"https://host/seed":        "must be signed",
		"/etc/holdfast/web.seed":   "",
		"seeds":                    "",
		"https://host\x00/seed":    "want a path or https://",
		"configmap://default/seed": "want a path or https://",
	} {
		_, err := NewSource(place, dial.Security{}, nil, 0)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "t0p")) {
			t.Errorf("%q: %v, want %q", place, err, want)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for place, want := range map[string]string{
		"configmap:web":         "want configmap:NAMESPACE/NAME",
		"configmap:../x/y":      "want configmap:NAMESPACE/NAME",
		"configmap:default/Web": "want configmap:NAMESPACE/NAME",
		"configmap:default/web": "this works in a pod only",
	} {
		if _, err := NewPlace(place, dial.Security{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", place, err, want)
		}
	}
}

func TestAFileIsReplacedOnlyIfItIsASeed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.seed")
	p, err := NewPlace(path, dial.Security{})
	if err != nil {
		t.Fatal(err)
	}
	if role, when, err := p.Published(t.Context()); role != "" || !when.IsZero() || err != nil {
		t.Errorf("%q %v %v", role, when, err)
	}
	s := example(t)
	if err := p.Publish(t.Context(), s, encoded(t, s, nil)); err != nil {
		t.Fatal(err)
	}
	if role, when, err := p.Published(t.Context()); role != "web" || !when.Equal(at) || err != nil {
		t.Errorf("%q %v %v", role, when, err)
	}
	write(t, path, []byte("something else"))
	if _, _, err := p.Published(t.Context()); err == nil || !strings.Contains(err.Error(), "is not replaced") {
		t.Errorf("%v", err)
	}
}

func TestADirectoryOfPartsIsRead(t *testing.T) {
	dir := t.TempDir()
	s := example(t)
	s.At, s.Resources = time.Now(), s.Resources[1:] // the first one has a TTL
	for i, part := range Split(encoded(t, s, newKey(t, 1)), 300) {
		write(t, filepath.Join(dir, fmt.Sprintf("seed.%d", i)), part)
	}
	if err := os.Mkdir(filepath.Join(dir, "..data"), 0o700); err != nil { // as in the volume of a ConfigMap
		t.Fatal(err)
	}
	trust, err := ReadTrust(write(t, filepath.Join(t.TempDir(), "pub"), publicPEM(t, newKey(t, 1))))
	if err != nil {
		t.Fatal(err)
	}
	src, err := NewSource(dir, dial.Security{}, trust, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := src.Read(t.Context(), "web"); err != nil || len(got.Resources) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	s.At = time.Now().Add(2 * time.Hour)
	write(t, filepath.Join(dir, "seed.0"), encoded(t, s, newKey(t, 1)))
	if _, err := src.Read(t.Context(), "web"); err == nil || !strings.Contains(err.Error(), "in the future") {
		t.Errorf("%v", err)
	}
	if _, err := src.Read(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "--seed-role") {
		t.Errorf("%v", err)
	}
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	key := newKey(t, 1)
	private := write(t, filepath.Join(dir, "key"), privatePEM(t, key))
	if got, err := ReadKey(private); err != nil || !got.Equal(key) {
		t.Errorf("%v", err)
	}
	both := write(t, filepath.Join(dir, "pub"), append(publicPEM(t, key), publicPEM(t, newKey(t, 2))...))
	if got, err := ReadTrust(both); err != nil || len(got) != 2 || !got[0].Equal(public(key)) {
		t.Errorf("%d keys, %v", len(got), err)
	}
	for name, tc := range map[string]struct {
		read func(string) error
		data []byte
		want string
	}{
		"a public key as the private one":   {readKey, publicPEM(t, key), "holds no private key"},
		"a private key as the public one":   {readTrust, privatePEM(t, key), "the public one is needed"},
		"no PEM":                            {readKey, []byte("x"), "holds no private key"},
		"no PEM in trust":                   {readTrust, []byte("x"), "holds no public key"},
		"damaged":                           {readKey, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "cannot be read"},
		"damaged in trust":                  {readTrust, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), "cannot be read"},
		"another algorithm":                 {readKey, otherPEM(t), "another algorithm"},
		"another algorithm in trust":        {readTrust, otherPublicPEM(t), "another algorithm"},
		"an encrypted key (PKCS #8, PBES2)": {readKey, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}), "holds no private key"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.read(write(t, filepath.Join(t.TempDir(), "file"), tc.data))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "openssl genpkey") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func readKey(path string) error   { _, err := ReadKey(path); return err }
func readTrust(path string) error { _, err := ReadTrust(path); return err }

// kubernetes is an API server with the ConfigMaps of one namespace.
type kubernetes struct {
	t    *testing.T
	mu   sync.Mutex
	maps map[string]*stored
	// before is called before a patch.
	before func(name string)
	forbid bool
}

type stored struct {
	version     int
	annotations map[string]string
	data        map[string][]byte
}

func (k *kubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/shop/configmaps/")
	if r.Header.Get("Authorization") != "Bearer pod" || !ok {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	if r.Method == http.MethodPatch && k.before != nil {
		k.before(name)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.maps[name]
	switch {
	case k.forbid:
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	case m == nil:
		http.NotFound(w, r)
		return
	case r.Method == http.MethodPatch:
		body, err := io.ReadAll(r.Body)
		var p struct {
			Metadata   metadata
			BinaryData map[string][]byte
		}
		if err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" || json.Unmarshal(body, &p) != nil {
			http.Error(w, "bad patch", http.StatusBadRequest)
			return
		}
		if v := p.Metadata.ResourceVersion; v != "" && v != fmt.Sprint(m.version) {
			http.Error(w, "conflict", http.StatusConflict)
			return
		}
		m.version++
		for key, value := range p.Metadata.Annotations {
			m.annotations[key] = value
		}
		for key, value := range p.BinaryData {
			if len(value) > 1<<20 {
				k.t.Errorf("a ConfigMap of %d bytes", len(value))
			}
			m.data[key] = value
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": metadata{fmt.Sprint(m.version), m.annotations}})
}

func (k *kubernetes) add(name string) {
	k.maps[name] = &stored{version: 7, annotations: make(map[string]string), data: make(map[string][]byte)}
}

func newKubernetes(t *testing.T) (*kubernetes, *configMap) {
	t.Helper()
	k := &kubernetes{t: t, maps: make(map[string]*stored)}
	k.add("web")
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), []byte("pod"))
	write(t, filepath.Join(dir, "ca.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	t.Setenv("KUBERNETES_SERVICE_HOST", "::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	p, err := NewPlace("configmap:shop/web", dial.Security{})
	if err != nil {
		t.Fatal(err)
	}
	place := p.(*configMap)
	if place.server != "https://[::1]:443" {
		t.Errorf("the server is %s", place.server)
	}
	place.server, place.dir = server.URL, dir
	return k, place
}

func TestASeedInAConfigMap(t *testing.T) {
	k, p := newKubernetes(t)
	if role, when, err := p.Published(t.Context()); role != "" || !when.IsZero() || err != nil {
		t.Fatalf("%q %v %v", role, when, err)
	}
	s := example(t)
	data := encoded(t, s, nil)
	if err := p.Publish(t.Context(), s, data); err != nil {
		t.Fatal(err)
	}
	if string(k.maps["web"].data["seed.0"]) != string(data) {
		t.Error("other bytes")
	}
	if role, when, err := p.Published(t.Context()); role != "web" || !when.Equal(at) || err != nil {
		t.Fatalf("%q %v %v", role, when, err)
	}
	// Another agent was faster.
	k.before = func(string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.maps["web"].version++
	}
	if err := p.Publish(t.Context(), s, data); !errors.Is(err, ErrAnother) {
		t.Errorf("%v", err)
	}
}

func TestALargeSeedIsInSeveralConfigMaps(t *testing.T) {
	k, p := newKubernetes(t)
	s := example(t)
	data := append([]byte(magic), make([]byte, 5<<19)...) // 2.5 MiB
	publish := func() error {
		if _, _, err := p.Published(t.Context()); err != nil {
			t.Fatal(err)
		}
		return p.Publish(t.Context(), s, data)
	}
	if err := publish(); err == nil || !strings.Contains(err.Error(), "the seed of 2560 KiB needs 3 ConfigMaps: the ConfigMap shop/web-2 does not exist") {
		t.Errorf("%v", err)
	}
	if _, when, _ := p.Published(t.Context()); !when.IsZero() {
		t.Error("the annotations say that there is a seed")
	}
	k.add("web-1")
	k.add("web-2")
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	var parts [][]byte
	for _, m := range k.maps {
		for _, part := range m.data {
			parts = append(parts, part)
		}
	}
	if got, err := Join(parts); err != nil || len(got) != len(data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestErrorsOfKubernetesSayWhatToDo(t *testing.T) {
	k, p := newKubernetes(t)
	ask := func(want string) {
		t.Helper()
		if _, _, err := p.Published(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	k.forbid = true
	ask("may not get the ConfigMap shop/web: give it get and patch")
	k.forbid = false
	delete(k.maps, "web")
	ask("the ConfigMap shop/web does not exist: create it, empty")
	write(t, filepath.Join(p.dir, "token"), []byte("other"))
	ask("may not get the ConfigMap")
	if err := os.Remove(filepath.Join(p.dir, "token")); err != nil {
		t.Fatal(err)
	}
	ask("automountServiceAccountToken")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	write(t, filepath.Join(p.dir, "token"), []byte("pod"))
	if _, _, err := p.Published(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A redirect does not lead out of TLS.
func TestARedirectToPlaintextIsRefused(t *testing.T) {
	asked := false
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	t.Cleanup(plain.Close)
	target := plain.URL
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, target, http.StatusFound)
	}))
	t.Cleanup(server.Close)
	ca := write(t, filepath.Join(t.TempDir(), "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	src, err := NewSource(server.URL, dial.Security{CA: ca}, []ed25519.PublicKey{public(newKey(t, 1))}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := src.Read(t.Context(), "web"); err == nil || !strings.Contains(err.Error(), "redirects to http://") || asked {
		t.Errorf("%v; asked: %t", err, asked)
	}
	target = server.URL
	if _, err := src.Read(t.Context(), "web"); err == nil || !strings.Contains(err.Error(), "more than ten times") {
		t.Errorf("%v", err)
	}
}
