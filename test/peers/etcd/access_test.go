package etcd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

// grant lets a role read and write what is between a key and an end.
func (s *store) grant(role, key, end string, access clientv3.PermissionType) {
	s.Helper()
	_, err := s.raw.RoleGrantPermission(context.Background(), role, key, end, access)
	s.Check(err)
}

// user makes a user with a role of its own.
func (s *store) user(name, password string) {
	s.Helper()
	ctx := context.Background()
	_, err := s.raw.RoleAdd(ctx, name)
	s.Check(err)
	_, err = s.raw.UserAdd(ctx, name, password)
	s.Check(err)
	_, err = s.raw.UserGrantRole(ctx, name, name)
	s.Check(err)
}

// A tenant is a user whose role has the namespaces that are its own.
func TestATenantWritesOnlyItsOwnNamespace(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.user("root", "root")
	s.user("shop", "shop-password")
	s.user("server", "server-password")
	s.grant("shop", "/holdfast/workloadentries.networking.istio.io/shop/", "/holdfast/workloadentries.networking.istio.io/shop0", clientv3.PermissionType(clientv3.PermReadWrite))
	s.grant("server", "/holdfast/", "/holdfast0", clientv3.PermissionType(clientv3.PermRead))
	_, err := s.raw.AuthEnable(context.Background())
	s.Check(err)
	as := func(name, password string) *etcd.Client {
		return s.open(etcd.Options{User: name, PasswordFile: s.file(name+".password", password+"\n")})
	}
	shop, server := as("shop", "shop-password"), as("server", "server-password")
	source := follow(s.Rig, server, "")
	source.synced()
	if problems := fmt.Sprint(source.Problems()); !strings.Contains(problems, "the role of servers must have read and write on /holdfast-replicas/") {
		t.Errorf("a server that may not keep the ages of documents says %s", problems)
	}
	// Finding S13: the first document of a namespace.
	first := s.file("a.yaml", "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a, namespace: shop}\nspec: {address: 10.0.0.1}\n")
	if out, err := exec.Command(meshBinary(t), "apply", "--etcd", s.url(), "--etcd-user", "shop", "--etcd-password-file", s.file("shop.password", "shop-password\n"), "-n", "shop", "-f", first).CombinedOutput(); err != nil {
		t.Errorf("the first document of a tenant: %v\n%s", err, out)
	}
	source.has("a", "10.0.0.1")
	other := *entry(t, "a", "10.0.0.1")
	other.Namespace = "bank"
	rule := read(t, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: shop}\nspec: {host: a.test}\n")
	for name, err := range map[string]error{
		"another's namespace":         must(shop.Create(t.Context(), &other)),
		"a kind that is not its own":  must(shop.Create(t.Context(), rule)),
		"delete in another's":         shop.Delete(t.Context(), other.Meta.Key, ""),
		"a server that may only read": must(server.Create(t.Context(), entry(t, "b", "10.0.0.1"))),
	} {
		if err == nil || !strings.Contains(err.Error(), "does not permit it to") {
			t.Errorf("%s: %v", name, err)
		}
	}
	wrong := s.file("rotated", "wrong")
	rotated := s.open(etcd.Options{User: "shop", PasswordFile: wrong})
	if _, err := rotated.Create(t.Context(), entry(t, "c", "10.0.0.1")); err == nil || !strings.Contains(err.Error(), "--etcd-password-file") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("a wrong password: %v", err)
	}
	s.file("rotated", "shop-password")
	write(t, rotated, entry(t, "c", "10.0.0.1")) // the file is read again
	source.has("c", "10.0.0.1")
	if _, err := s.open(etcd.Options{}).Create(t.Context(), entry(t, "d", "10.0.0.1")); err == nil || !strings.Contains(err.Error(), "--etcd-user") {
		t.Errorf("no user: %v", err)
	}
	source.want("add a", "add c")
}

// With a user, a server starts without the store, too.
func TestAStartWithAUserDoesNotNeedTheStore(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.user("root", "root")
	s.user("server", "server-password")
	s.grant("server", "/holdfast/", "/holdfast0", clientv3.PermissionType(clientv3.PermReadWrite))
	_, err := s.raw.AuthEnable(context.Background())
	s.Check(err)
	s.stop()
	c := s.open(etcd.Options{User: "server", PasswordFile: s.file("password", "server-password")})
	source := follow(s.Rig, c, "")
	s.Eventually(func() error {
		if source.State().Away == nil {
			return errors.New("it is not noticed")
		}
		return nil
	})
	s.start("data")
	source.synced()
	write(t, c, entry(t, "a", "10.0.0.1"))
	source.has("a", "10.0.0.1")
}

// must returns the error of a call.
func must(_ string, err error) error { return err }
