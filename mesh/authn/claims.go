package authn

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// serviceAccount begins the subject of a token of Kubernetes.
const serviceAccount = "system:serviceaccount:"

// claims are those of a token that name a workload.
type claims struct {
	// Kubernetes is what a bound token of a service account has.
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// identity returns the identity that a subject and claims name: a service account of Kubernetes, or a SPIFFE ID
// as Istio writes it. domain is the trust domain of service accounts.
func (c claims) identity(subject, domain string) (*proxy.Identity, error) {
	if strings.HasPrefix(subject, pki.SPIFFE) {
		id, err := spiffeid.FromString(subject)
		if err != nil {
			return nil, fmt.Errorf("its subject: %w", err)
		}
		return proxy.IdentityOfID(id)
	}
	rest, found := strings.CutPrefix(subject, serviceAccount)
	namespace, account, complete := strings.Cut(rest, ":")
	if !found || !complete || !isName(namespace) || !isName(account) {
		return nil, fmt.Errorf("its subject %.200q is neither %sNAMESPACE:ACCOUNT nor spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT", subject, serviceAccount)
	}
	if of := c.Kubernetes; of.Namespace != "" && (of.Namespace != namespace || of.ServiceAccount.Name != account) {
		return nil, fmt.Errorf("its subject is %.200q, and its claims are of the service account %.200q of %.200q", subject, of.ServiceAccount.Name, of.Namespace)
	}
	return &proxy.Identity{TrustDomain: domain, Namespace: namespace, ServiceAccount: account}, nil
}

// isName reports whether a text may be a part of a SPIFFE ID, as names of Kubernetes are.
func isName(text string) bool { return spiffeid.ValidatePathSegment(text) == nil }
