package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
)

func TestEveryKindHasKeysOfItsOwn(t *testing.T) {
	c := unconnected()
	seen := make(map[string]config.Key)
	for _, schema := range config.Schemas {
		key := config.Key{Kind: schema.Kind, Name: "a.b"}
		if schema.Namespaced {
			key.Namespace = "shop"
		}
		path := c.path(key)
		if other, has := seen[path]; has {
			t.Errorf("%s and %s have the key %s", key, other, path)
		}
		seen[path] = key
		if got, ok := c.parse(path); !ok || got != key {
			t.Errorf("%s is read as %v", path, got)
		}
		if !strings.HasPrefix(path, c.pathOf(key.Kind, key.Namespace)) {
			t.Errorf("%s does not begin with %s", path, c.pathOf(key.Kind, key.Namespace))
		}
	}
	if got := c.path(config.Key{Kind: config.VirtualService, Namespace: "shop", Name: "web"}); got != "/holdfast/virtualservices.networking.istio.io/shop/web" {
		t.Error(got)
	}
	if got := c.path(config.Key{Kind: config.Namespace, Name: "shop"}); got != "/holdfast/namespaces/_/shop" {
		t.Error(got)
	}
}

// secret is a Secret with a private text.
func secret(t *testing.T, name string) *config.Config {
	t.Helper()
	documents, broken := config.Read("secret.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: "+name+", namespace: shop}\ntype: Opaque\nstringData: {token: PRIVATE}\n"))
	if broken != nil || documents[0].Config == nil {
		t.Fatal(broken, documents)
	}
	return documents[0].Config
}

func TestASecretIsStoredEncrypted(t *testing.T) {
	doc := secret(t, "token")
	one := unconnected("1")
	text, err := one.encode(doc, time.Unix(1, 0))
	check(t, err)
	if strings.Contains(string(text), "PRIVATE") || strings.Contains(string(text), "UFJJVkFURQ") {
		t.Errorf("it is in the clear: %s", text)
	}
	if config.AuthorOf(text).Name != "alice" {
		t.Errorf("its author cannot be read: %s", text)
	}
	path := one.path(doc.Meta.Key)
	for _, tc := range []struct {
		name   string
		client *Client
		path   string
		value  string
		want   string // "" for a document
	}{
		{"same key", one, path, string(text), ""},
		{"key after another", unconnected("2", "1"), path, string(text), ""},
		{"other key", unconnected("2"), path, string(text), "cannot be decrypted"},
		{"no key", unconnected(), path, string(text), "--secret-key-file"},
		{"in the place of another", one, path + "x", strings.Replace(string(text), `"name":"token"`, `"name":"tokenx"`, 1), "cannot be decrypted"},
		{"changed", one, path, strings.Replace(string(text), `"sealed":"`, `"sealed":"AAAA`, 1), "cannot be decrypted"},
		{"in the clear", one, path, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"token","namespace":"shop"},"stringData":{"token":"PRIVATE"}}`, "not encrypted"},
		{"not JSON", one, path, `PRIVATE`, "no document"},
		{"short", one, path, `{"sealed":"AAAA"}`, "not encrypted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, got, problems := tc.client.decode(tc.path, []byte(tc.value), 7, config.StoreOrder{})
			switch {
			case tc.want == "":
				if got == nil || config.ContentVersion(got) != config.ContentVersion(doc) {
					t.Errorf("%v %v", got, problems)
				}
			case got != nil || len(problems) != 1 || !strings.Contains(problems[0].Message, tc.want) || strings.Contains(problems[0].Message, "PRIVATE"):
				t.Errorf("%v %v", got, problems)
			}
		})
	}
	if _, err := unconnected().encode(doc, time.Unix(1, 0)); err == nil || !strings.Contains(err.Error(), "--secret-key-file") {
		t.Errorf("without a key: %v", err)
	}
	again, err := one.encode(doc, time.Unix(1, 0))
	check(t, err)
	if string(again) == string(text) {
		t.Error("the same text is encrypted in the same way twice")
	}
}

func TestASecretIsEncryptedWithAnotherKey(t *testing.T) {
	doc := secret(t, "token")
	old, both, latest := unconnected("1"), unconnected("2", "1"), unconnected("2")
	before, err := old.encode(doc, time.Unix(1, 0))
	check(t, err)
	path := old.path(doc.Meta.Key)
	after, err := both.sealer.Reseal(doc.Meta.Key, before)
	check(t, err)
	if _, got, problems := latest.decode(path, after, 7, config.StoreOrder{}); got == nil || config.ContentVersion(got) != config.ContentVersion(doc) {
		t.Errorf("with the new key: %v", problems)
	}
	if _, got, _ := old.decode(path, after, 7, config.StoreOrder{}); got != nil {
		t.Error("the old key decrypts it")
	}
	if got := config.AuthorOf(after); got != config.AuthorOf(before) || got.Name != "alice" {
		t.Errorf("it was written by %v, before by %v", got, config.AuthorOf(before))
	}
	if again, err := both.sealer.Reseal(doc.Meta.Key, after); again != nil || err != nil {
		t.Errorf("it is encrypted again: %s, %v", again, err)
	}
	if got, err := unconnected("3").sealer.Reseal(doc.Meta.Key, after); got != nil || !errors.Is(err, seal.ErrOtherKey) {
		t.Errorf("without its key: %s, %v", got, err)
	}
}

func TestADocumentThatIsTooLargeIsRefused(t *testing.T) {
	doc := *entry("a", "10.0.0.1")
	doc.Annotations = map[string]string{"a": strings.Repeat("x", maxDocument)}
	if _, err := unconnected().encode(&doc, time.Unix(1, 0)); err == nil || !strings.Contains(err.Error(), "divide it") {
		t.Error(err)
	}
}

func TestWrongOptionsAreErrorsThatNameTheFlag(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	check(t, os.WriteFile(empty, nil, 0o600))
	https := []string{"https://127.0.0.1:1"}
	http := []string{"http://127.0.0.1:1"}
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"no endpoint", Options{}, "--etcd"},
		{"no scheme", Options{Endpoints: []string{"127.0.0.1:2379"}}, "--etcd"},
		{"other scheme", Options{Endpoints: []string{"ftp://127.0.0.1:2379"}}, "--etcd"},
		{"user in the URL", Options{Endpoints: []string{"http://root:SECRET@127.0.0.1:2379"}}, "--etcd-user"},
		{"path", Options{Endpoints: []string{"http://127.0.0.1:2379/mesh"}}, "--etcd-prefix"},
		{"two schemes", Options{Endpoints: []string{"http://127.0.0.1:1", "https://127.0.0.1:2"}}, "https, or none"},
		{"prefix", Options{Endpoints: http, Prefix: "mesh"}, "--etcd-prefix"},
		{"prefix with a slash", Options{Endpoints: http, Prefix: "/mesh/"}, "--etcd-prefix"},
		{"TLS without https", Options{Endpoints: http, CA: empty}, "https"},
		{"no CA", Options{Endpoints: https, CA: empty}, "--etcd-ca"},
		{"only a certificate", Options{Endpoints: https, Cert: empty}, "--etcd-key"},
		{"no certificate", Options{Endpoints: https, Cert: empty, Key: empty}, "--etcd-cert"},
		{"no password", Options{Endpoints: http, User: "a"}, "--etcd-password-file"},
		{"empty password", Options{Endpoints: http, User: "a", PasswordFile: empty}, "empty"},
		{"no user", Options{Endpoints: http, PasswordFile: empty}, "--etcd-user"},
		{"no key", Options{Endpoints: http, SecretKeys: []string{empty}}, "--secret-key-file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(tc.o)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
