package kubernetes

import (
	"slices"
	"testing"

	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

func TestNativeSidecar(t *testing.T) {
	play(t, "native-sidecar", deploy(t, "overlays/native-sidecar"))
}

func TestEnvoyAsChild(t *testing.T) {
	play(t, "envoy-child", deploy(t, "overlays/envoy-child"))
}

func TestGateway(t *testing.T) {
	rig.OnlyLong(t)
	play(t, "gateway", deploy(t, "overlays/gateway", changed(gatewayApplication)))
}

func TestPlainSidecar(t *testing.T) {
	rig.OnlyLong(t)
	play(t, "plain-sidecar", deploy(t, "overlays/native-sidecar", changed(plainSidecar)))
}

func TestHardened(t *testing.T) {
	rig.OnlyLong(t)
	for _, overlay := range []string{"native-sidecar", "envoy-child"} {
		t.Run(overlay, func(t *testing.T) {
			play(t, overlay+", hardened", deploy(t, "overlays/"+overlay, hardened))
		})
	}
	t.Run("plain-sidecar", func(t *testing.T) {
		play(t, "plain-sidecar, hardened", deploy(t, "overlays/native-sidecar", hardened, changed(plainSidecar)))
	})
	t.Run("gateway", func(t *testing.T) {
		play(t, "gateway, hardened", deploy(t, "overlays/gateway", hardened, changed(gatewayApplication)))
	})
}

// gatewayApplication puts an application beside the gateway's Envoy: the tests' control plane leads there. Two replicas
// are enough for this machine.
func gatewayApplication(doc map[string]any) {
	spec := podSpec(doc)
	if spec == nil {
		return
	}
	doc["spec"].(map[string]any)["replicas"] = 2
	spec["containers"] = append(spec["containers"].([]any), map[string]any{
		"name": "application", "image": rig.Agnhost, "args": []any{"netexec", "--http-port=8080"},
		// It is there as long as Envoy drains.
		"lifecycle":       map[string]any{"preStop": map[string]any{"sleep": map[string]any{"seconds": 30}}},
		"securityContext": restrictedContext(65534),
	})
}

func restrictedContext(user int) map[string]any {
	return map[string]any{
		"runAsNonRoot": true, "runAsUser": user, "allowPrivilegeEscalation": false,
		"capabilities": map[string]any{"drop": []any{"ALL"}}, "seccompProfile": map[string]any{"type": "RuntimeDefault"},
	}
}

// plainSidecar is the shape of docs/deploy.md for clusters without native sidecars: holdfast and envoy are containers
// before the application. A postStart hook delays what follows, and Envoy's preStop hook lasts as long as the application's.
func plainSidecar(doc map[string]any) {
	spec := podSpec(doc)
	if spec == nil {
		return
	}
	inits := spec["initContainers"].([]any)
	var moved []any
	for _, c := range inits[1:] {
		container := c.(map[string]any)
		delete(container, "restartPolicy")
		lifecycle, _ := container["lifecycle"].(map[string]any)
		if lifecycle == nil {
			lifecycle = make(map[string]any)
			container["lifecycle"] = lifecycle
		}
		if container["name"] == "envoy" {
			lifecycle["preStop"] = map[string]any{"sleep": map[string]any{"seconds": 15}}
		}
		moved = append(moved, container)
	}
	spec["initContainers"] = inits[:1]
	spec["containers"] = slices.Concat(moved, spec["containers"].([]any))
}
