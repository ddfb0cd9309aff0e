package seed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

// Of the first ConfigMap of a seed.
const (
	atAnnotation   = "holdfast.dev/seed-at"
	roleAnnotation = "holdfast.dev/seed-role"
)

// partSize is the maximum size of what a ConfigMap may contain (1 MiB), with room for the name of the key.
const partSize = 1<<20 - 1<<10

// serviceAccount is the directory in which a pod finds its credentials for Kubernetes.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// configMap is a place in Kubernetes: the ConfigMap name has the seed in its key seed.0. If that is larger than a
// ConfigMap may be, the second part is in the key seed.1 of the ConfigMap name-1, and so on. All of them must exist:
// then the account needs no right to create, only get and patch on these names. A volume that projects them into one
// directory is what Source reads. The agent uses the credentials of its pod's service account.
type configMap struct {
	place, namespace, name string
	// dir has the credentials, and server is the URL of Kubernetes; they are set by newConfigMap.
	dir, server string
	// version is the resource version of the ConfigMap that Published has seen.
	version string
}

// names of Kubernetes (RFC 1123 labels; names of ConfigMaps may have dots).
var kubernetesName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?$`)

func newConfigMap(flag, place, name string) (*configMap, error) {
	namespace, name, ok := strings.Cut(name, "/")
	if !ok || !kubernetesName.MatchString(namespace) || !kubernetesName.MatchString(name) {
		return nil, fmt.Errorf("%s %q: want configmap:NAMESPACE/NAME", flag, place)
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fmt.Errorf("%s %s: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this works in a pod only; outside name a file or an https:// URL", flag, place)
	}
	return &configMap{place: place, namespace: namespace, name: name, dir: serviceAccount, server: "https://" + net.JoinHostPort(host, port)}, nil
}

func (p *configMap) String() string { return p.place }

// part returns the name of the ConfigMap with a part of the seed.
func (p *configMap) part(i int) string {
	if i == 0 {
		return p.name
	}
	return fmt.Sprintf("%s-%d", p.name, i)
}

// metadata is what is read and written of the metadata of a ConfigMap.
type metadata struct {
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

// patch is a merge patch of a ConfigMap (RFC 7386).
type patch struct {
	Metadata   metadata          `json:"metadata"`
	BinaryData map[string][]byte `json:"binaryData"`
}

func (p *configMap) send(ctx context.Context, method, name string, body []byte) ([]byte, error) {
	token := filepath.Join(p.dir, "token")
	if _, err := os.Stat(token); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: give the pod its service account's token (automountServiceAccountToken)", token)
	}
	c, err := newClient(dial.Security{Flags: "seed", CA: filepath.Join(p.dir, "ca.crt"), TokenFile: token})
	if err != nil {
		return nil, err
	}
	defer c.CloseIdleConnections()
	url := p.server + "/api/v1/namespaces/" + p.namespace + "/configmaps/" + name
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// The answer has no content: that would be a megabyte from each agent's question.
	req.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	if body != nil {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	_, answer, err := c.do(req, http.StatusOK)
	switch {
	case isStatus(err, http.StatusNotFound):
		return nil, fmt.Errorf("the ConfigMap %s/%s does not exist: create it, empty (docs/offline.md)", p.namespace, name)
	case isStatus(err, http.StatusForbidden), isStatus(err, http.StatusUnauthorized):
		return nil, fmt.Errorf("the pod's service account may not %s the ConfigMap %s/%s: give it get and patch (docs/offline.md): %w",
			strings.ToLower(method), p.namespace, name, err)
	case isStatus(err, http.StatusConflict):
		return nil, ErrAnother
	case err != nil:
		return nil, fmt.Errorf("the ConfigMap %s/%s: %w", p.namespace, name, err)
	}
	return answer, nil
}

func (p *configMap) Published(ctx context.Context) (string, time.Time, error) {
	answer, err := p.send(ctx, http.MethodGet, p.name, nil)
	if err != nil {
		return "", time.Time{}, err
	}
	var there struct{ Metadata metadata }
	if err := json.Unmarshal(answer, &there); err != nil {
		return "", time.Time{}, fmt.Errorf("the answer of Kubernetes: %w", err)
	}
	p.version = there.Metadata.ResourceVersion
	at, _ := time.Parse(time.RFC3339, there.Metadata.Annotations[atAnnotation]) // another text: it is replaced
	return there.Metadata.Annotations[roleAnnotation], at, nil
}

// Publish writes the first part last, because its annotations say what is there. Published is called before.
func (p *configMap) Publish(ctx context.Context, s *Seed, data []byte) error {
	parts := Split(data, partSize)
	for i := len(parts) - 1; i >= 0; i-- {
		change := patch{BinaryData: map[string][]byte{fmt.Sprintf("seed.%d", i): parts[i]}}
		if i == 0 {
			change.Metadata = metadata{p.version, map[string]string{
				atAnnotation: s.At.UTC().Format(time.RFC3339), roleAnnotation: s.Role,
			}}
		}
		body, err := json.Marshal(change)
		if err != nil {
			return err
		}
		if _, err := p.send(ctx, http.MethodPatch, p.part(i), body); err != nil {
			if i > 0 && !errors.Is(err, ErrAnother) {
				err = fmt.Errorf("the seed of %d KiB needs %d ConfigMaps: %w", len(data)>>10, len(parts), err)
			}
			return err
		}
	}
	return nil
}
