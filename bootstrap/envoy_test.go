package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

func TestEnvoyAcceptsTheBootstrap(t *testing.T) {
	envoy := envoytest.Binary(t)
	for nodeName, node := range map[string]Node{"full": full().Node, "hostile": hostileNode()} {
		for _, mode := range []Mode{Delta, SotW} {
			for ext, format := range formats {
				for adminName, admin := range map[string]string{"unix": "unix:/run/holdfast/envoy-admin.sock", "tcp": "127.0.0.1:0"} {
					t.Run(nodeName+"/"+string(mode)+"/"+ext+"/admin-"+adminName, func(t *testing.T) {
						cfg := Config{Node: node, XDS: XDS{Mode: mode}, Admin: admin}
						path := filepath.Join(t.TempDir(), "envoy."+ext)
						if err := atomicfile.Write(path, mustEncode(t, mustBuild(t, cfg), format), 0o644); err != nil {
							t.Fatal(err)
						}
						if out, err := validate(t, envoy, path); err != nil {
							t.Errorf("%v\n%s", err, out)
						}
					})
				}
			}
		}
	}
}

// Without this, an Envoy that accepts everything would pass the test above.
func TestEnvoyRefusesABootstrapWithoutItsCluster(t *testing.T) {
	b := mustBuild(t, minimal())
	b.StaticResources = nil
	path := filepath.Join(t.TempDir(), "envoy.json")
	if err := atomicfile.Write(path, mustEncode(t, b, JSON), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := validate(t, envoytest.Binary(t), path); err == nil {
		t.Errorf("accepted:\n%s", out)
	}
}

func hostileNode() Node {
	node := Node{ID: hostile[len(hostile)-1], Cluster: `"}, "admin": {`, Locality: "on/~/\u0085", Metadata: map[string]any{}}
	for _, s := range hostile {
		node.Metadata[s] = s
		node.Metadata["nested in "+s] = map[string]any{s: []any{s, []any{s, map[string]any{s: s}}}}
	}
	return node
}

// Acceptance alone does not show that Envoy's readers understood the text as it was meant.
func TestEnvoyTellsTheNodeThatItWasGiven(t *testing.T) {
	envoy := envoytest.Binary(t)
	for ext, format := range formats {
		t.Run(ext, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "holdfast") // short: a socket's path has at most 107 bytes
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			admin, path := filepath.Join(dir, "admin.sock"), filepath.Join(dir, "envoy."+ext)
			b := mustBuild(t, Config{Node: hostileNode(), XDS: XDS{Socket: filepath.Join(dir, "xds.sock")}, Admin: "unix:" + admin})
			if err := atomicfile.Write(path, mustEncode(t, b, format), 0o644); err != nil {
				t.Fatal(err)
			}
			got := runEnvoyForItsNode(t, envoy, path, admin)
			want := b.GetNode()
			same := proto.Equal(got.GetMetadata(), want.GetMetadata()) && proto.Equal(got.GetLocality(), want.GetLocality())
			if !same || got.GetId() != want.GetId() || got.GetCluster() != want.GetCluster() {
				got.Extensions = nil
				t.Errorf("got %v\nwant %v", got, want)
			}
			if info, err := os.Stat(admin); err != nil || info.Mode().Perm() != adminSocketMode {
				t.Errorf("mode of the admin socket: %v, %v", info.Mode(), err)
			}
		})
	}
}

// runEnvoyForItsNode starts an Envoy, asks its admin for its node, and stops it.
func runEnvoyForItsNode(t *testing.T, envoy, path, admin string) *corev3.Node {
	t.Helper()
	info := &adminv3.ServerInfo{}
	body := askEnvoy(t, envoy, path, admin, "/server_info")
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, info); err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	return info.GetNode()
}

// askEnvoy starts an Envoy, asks its admin once that answers, and stops it.
func askEnvoy(t *testing.T, envoy, path, admin, what string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &log, &log, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", admin)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	retry := time.NewTicker(20 * time.Millisecond) // a foreign process: there is nothing to wait on but its socket
	defer retry.Stop()
	for {
		if body, err := get(ctx, client, "http://admin"+what); err == nil {
			cancel()
			<-exited
			return body
		}
		select {
		case err := <-exited:
			t.Fatalf("Envoy ended before its admin answered: %v\n%s", err, &log)
		case <-retry.C:
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return body, errors.Join(err, response.Body.Close())
}

func validate(t *testing.T, envoy, path string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, envoy, "--mode", "validate", "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}
