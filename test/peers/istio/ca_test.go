package istio

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/credentialfetcher/plugin"
	"istio.io/istio/security/pkg/nodeagent/cache"
	"istio.io/istio/security/pkg/nodeagent/caclient/providers/citadel"
)

// token writes a token of a service account, which a key signs, to a file.
func token(t *testing.T, key *ecdsa.PrivateKey, file, issuer, subject string) {
	t.Helper()
	encode := func(v any) string {
		text, err := json.Marshal(v)
		check(t, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := encode(map[string]string{"alg": "ES256"}) + "." + encode(map[string]any{"iss": issuer, "aud": []string{"istio-ca"}, "sub": subject, "exp": time.Now().Add(time.Hour).Unix()})
	r, s, err := ecdsa.Sign(rand.Reader, key, hash(signed))
	check(t, err)
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	check(t, os.WriteFile(file, []byte(signed+"."+base64.RawURLEncoding.EncodeToString(signature)), 0o600))
}

// Istio's own agent, as pilot-agent runs it, gets its certificate and its roots from holdfast-mesh.
func TestIstiosAgentGetsItsCertificateFromHoldfastMesh(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	check(t, os.Mkdir(path("documents"), 0o700))
	check(t, os.WriteFile(path("documents/none.yaml"), []byte("# no documents: this mesh makes certificates\n"), 0o600))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	check(t, err)
	check(t, os.WriteFile(path("keys.pem"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	const issuer = "https://kubernetes.default.svc"
	token(t, key, path("token"), issuer, "system:serviceaccount:shop:web")
	addr, admin := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	mesh := start(t, "holdfast-mesh", path("mesh.log"), holdfastBinary, "serve", "--config", path("documents"), "--listen", "", "--tls-listen", addr, "--admin", admin,
		"--ca", "dev:"+path("ca"), "--tls-name", "istiod.istio-system.svc", "--token-issuer", issuer, "--token-keys", issuer+"="+path("keys.pem"))
	mesh.wait(t, func() error {
		resp, err := http.Get("http://" + admin + "/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/ready: %s", readAll(resp.Body))
		}
		return nil
	})
	options := &security.Options{
		CAEndpoint: addr, CAEndpointSAN: "istiod.istio-system.svc", TrustDomain: "cluster.local", WorkloadNamespace: "shop", ServiceAccount: "web",
		CredFetcher: plugin.CreateTokenPlugin(path("token")), SecretTTL: time.Hour, ECCSigAlg: "ECDSA", ECCCurve: "P256", ClusterID: "Kubernetes",
	}
	client, err := citadel.NewCitadelClient(options, &citadel.TLSOptions{RootCert: path("ca/root-cert.pem")})
	check(t, err)
	defer client.Close()
	secrets, err := cache.NewSecretManagerClient(client, options)
	check(t, err)
	defer secrets.Close()
	secret, err := secrets.GenerateSecret(security.WorkloadKeyCertResourceName)
	check(t, err)
	block, _ := pem.Decode(secret.CertificateChain)
	cert, err := x509.ParseCertificate(block.Bytes)
	check(t, err)
	if len(cert.URIs) != 1 || cert.URIs[0].String() != "spiffe://cluster.local/ns/shop/sa/web" || time.Until(cert.NotAfter) > time.Hour {
		t.Errorf("the certificate is of %v until %s", cert.URIs, cert.NotAfter)
	}
	roots, err := secrets.GenerateSecret(security.RootCertReqResourceName)
	check(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots.RootCert) {
		t.Fatalf("no root: %s", roots.RootCert)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	// The token of another service account is good for its own certificate only.
	token(t, key, path("token"), issuer, "system:serviceaccount:shop:thief")
	other, err := cache.NewSecretManagerClient(client, options)
	check(t, err)
	defer other.Close()
	if secret, err := other.GenerateSecret(security.WorkloadKeyCertResourceName); err == nil {
		t.Errorf("another service account's token got a certificate: %s", secret.CertificateChain)
	}
}

func hash(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}
