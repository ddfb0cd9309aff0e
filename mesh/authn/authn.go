// Package authn says who a client of the control plane is: by the SPIFFE ID of its certificate, or by a token
// (JWT) of an issuer that the mesh trusts.
//
// It promises that a client has an identity only if a certificate or a token proves it, over an encrypted
// connection: what the client says of itself counts for nothing. Tokens are not logged, and no error has one.
// All methods may be called by several goroutines at once.
package authn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// DefaultAudience is the audience of the tokens that Istio's templates mount.
const DefaultAudience = "istio-ca"

// timeout bounds the proof of an identity, for which the keys of an issuer may have to be fetched.
const timeout = 5 * time.Second

// Config says how clients prove who they are.
type Config struct {
	// Issuers are the issuers of tokens; none accepts no tokens.
	Issuers []Issuer
	// Audiences are those of which a token must have one; empty means DefaultAudience.
	Audiences []string
	// Required rejects clients of encrypted connections that prove nothing.
	Required bool
	Log      *slog.Logger // may be nil
}

// Authenticator says who clients are. Create one with New.
type Authenticator struct {
	cfg     Config
	issuers map[string]*issuer // by URL
	// assigned are the trust domains of issuers.
	assigned map[string]bool
}

// New checks the configuration, and reads the files of keys.
func New(cfg Config) (*Authenticator, error) {
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = []string{DefaultAudience}
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	a := &Authenticator{cfg: cfg, issuers: make(map[string]*issuer), assigned: make(map[string]bool)}
	for _, from := range cfg.Issuers {
		if a.issuers[from.URL] != nil {
			return nil, fmt.Errorf("the issuer %s is named twice", from.URL)
		}
		i, err := newIssuer(from, cfg.Log)
		if err != nil {
			return nil, fmt.Errorf("issuer %s: %w", from.URL, err)
		}
		a.issuers[from.URL] = i
		if from.TrustDomain != "" {
			a.assigned[from.TrustDomain] = true
		}
	}
	return a, nil
}

// Assigned reports whether a trust domain is that of an issuer, for which no other one speaks.
func (a *Authenticator) Assigned(domain string) bool { return a.assigned[domain] }

// Identify returns who a client is; nil if it proves nothing and need not. domains are the trust domains of
// the mesh, its own first, of which tokens are, too, that do not say theirs and whose issuer has none. Errors are
// those of gRPC: UNAUTHENTICATED if the proof is missing or wrong, UNAVAILABLE if it cannot be checked now.
func (a *Authenticator) Identify(ctx context.Context, c downstream.Credentials, domains []string) (*proxy.Identity, error) {
	if !c.Secure {
		return nil, nil // whoever listens could use the token
	}
	id, err := proxy.IdentityOf(c.Certificate)
	switch {
	case err != nil:
	case id != nil && c.Certificate.IsCA:
		err = errors.New("the client certificate is that of an authority")
	case id != nil && time.Now().After(c.Certificate.NotAfter): // the connection may be older
		err = errors.New("the client certificate has expired")
	}
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if id != nil {
		id.Expires = c.Certificate.NotAfter
		return id, nil
	}
	switch raw := bearer(c.Authorization); {
	case raw != "" && len(a.issuers) > 0:
		return a.identifyToken(ctx, raw, domains)
	case !a.cfg.Required:
		return nil, nil
	case raw != "":
		return nil, status.Error(codes.Unauthenticated, "the client has a token, and this server checks none: give it --token-issuer with the URL of the token's issuer, "+
			"or the agent --upstream-cert and --upstream-key in place of the token")
	}
	return nil, status.Error(codes.Unauthenticated, "the client says who it is, and proves it neither with a certificate that has a SPIFFE ID nor with a token: "+
		"give the agent --upstream-cert and --upstream-key, or --upstream-token-file")
}

func (a *Authenticator) identifyToken(ctx context.Context, raw string, domains []string) (*proxy.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	refuse := func(err error) error {
		if errors.Is(err, errKeys) {
			return status.Error(codes.Unavailable, errKeys.Error())
		}
		return status.Error(codes.Unauthenticated, "the token is not accepted: "+err.Error())
	}
	name, err := issuerOf(raw)
	if err != nil {
		return nil, refuse(err)
	}
	i := a.issuers[name]
	if i == nil {
		return nil, refuse(fmt.Errorf("its issuer %.200q is not one of the mesh", name))
	}
	token, err := i.verify(ctx, raw)
	if err != nil {
		return nil, refuse(err)
	}
	if !slices.ContainsFunc(token.Audience, func(to string) bool { return slices.Contains(a.cfg.Audiences, to) }) {
		return nil, refuse(fmt.Errorf("its audience is %.200q, and not %s", token.Audience, strings.Join(a.cfg.Audiences, " or ")))
	}
	var c claims
	if err := token.Claims(&c); err != nil {
		return nil, refuse(fmt.Errorf("its claims cannot be read: %w", err))
	}
	id, err := c.identity(token.Subject, cmp.Or(i.TrustDomain, domains[0]))
	if err == nil {
		err = a.checkDomain(i, id, domains)
	}
	if err != nil {
		return nil, refuse(err)
	}
	id.Expires = token.Expiry
	return id, nil
}

// checkDomain checks that an issuer speaks for the trust domain of an identity: for its own, which must be one of the
// mesh, or, if it has none, for those that no issuer has.
func (a *Authenticator) checkDomain(i *issuer, id *proxy.Identity, domains []string) error {
	switch {
	case i.TrustDomain == "" && a.assigned[id.TrustDomain]:
		return fmt.Errorf("its identity %s is of a trust domain for which other issuers speak: assign one to its own with --token-trust-domain %s=DOMAIN", id.ID(), i.URL)
	case i.TrustDomain == "":
		return nil // where the identity is used, its trust domain must be one of the mesh
	case !slices.Contains(domains, i.TrustDomain):
		return fmt.Errorf("the trust domain of its issuer (--token-trust-domain) is %s, and not one of the mesh: add it to trustDomainAliases of the mesh configuration, which has %s", i.TrustDomain, strings.Join(domains, ", "))
	case id.TrustDomain != i.TrustDomain:
		return fmt.Errorf("its identity is %s, and its issuer speaks for the trust domain %s only", id.ID(), i.TrustDomain)
	}
	return nil
}

// bearer returns the token of the first header that has one.
func bearer(headers []string) string {
	for _, h := range headers {
		if scheme, token, found := strings.Cut(h, " "); found && strings.EqualFold(scheme, "Bearer") {
			return strings.TrimSpace(token)
		}
	}
	return ""
}
