package inspect

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/holdfast-xds/holdfast/internal/routing"
)

// Client is who sends a request, as far as policies ask.
type Client struct {
	// Principal is the SPIFFE ID of its certificate; "" if it has none.
	Principal string
	// Address is where the connection comes from; "" if that is not known.
	Address string
	// Claims are those of a token that is valid; nil for none.
	Claims map[string]any
	// ServerName is the SNI of the connection.
	ServerName string
}

// String says who the client is.
func (c Client) String() string {
	who := "a client without an identity"
	if c.Principal != "" {
		who = c.Principal
	}
	if c.Address != "" {
		who += " at " + c.Address
	}
	if c.Claims != nil {
		return who + fmt.Sprintf(", with a token of %v for %v", c.Claims["iss"], c.Claims["sub"])
	}
	return who + ", without a token"
}

// ParseClaims reads the claims of a token: an object of JSON.
func ParseClaims(text string) (claims map[string]any, err error) {
	if err = json.Unmarshal([]byte(text), &claims); err == nil && claims == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return nil, fmt.Errorf("claims: want an object of JSON: %w", err)
	}
	return claims, nil
}

// serverName returns the SNI of the connection.
func (x *explainer) serverName() string { return cmp.Or(x.Client.ServerName, x.Host) }

// source returns where the connection comes from; the zero Addr if that is not known.
func (x *explainer) source() netip.Addr {
	address, _ := netip.ParseAddr(x.Client.Address)
	return address
}

// remote returns the address of the first client as Envoy tells it: that of the connection, or the one that the last
// trusted proxy put into X-Forwarded-For.
func (x *explainer) remote(m *managerv3.HttpConnectionManager) netip.Addr {
	if x.RemoteUnknown {
		return netip.Addr{}
	}
	hops := int(m.GetXffNumTrustedHops())
	if m.GetUseRemoteAddress().GetValue() {
		hops-- // the connection is the last hop
	}
	addresses := strings.Split(header(x.Headers, forwardedFor), ",")
	if hops < 0 || hops >= len(addresses) {
		return x.source()
	}
	address, err := netip.ParseAddr(strings.TrimSpace(addresses[len(addresses)-1-hops]))
	if err != nil {
		return x.source()
	}
	return address
}

// Forwarded returns a request as the proxy sends it on: a gateway appends where the connection comes from to
// X-Forwarded-For.
func (e *Explanation) Forwarded(req Request) Request {
	if !e.appends {
		return req
	}
	appended := req.Client.Address
	if before := header(req.Headers, forwardedFor); before != "" {
		appended = before + "," + appended
	}
	headers := map[string]string{forwardedFor: appended}
	for name, value := range req.Headers {
		if !strings.EqualFold(name, forwardedFor) {
			headers[name] = value
		}
	}
	req.Headers, req.RemoteUnknown = headers, req.Client.Address == ""
	return req
}

const forwardedFor = "x-forwarded-for"

func header(headers map[string]string, name string) string {
	for n, value := range headers {
		if strings.EqualFold(n, name) {
			return value
		}
	}
	return ""
}

// serverTLS returns how a filter chain ends TLS; nil if it does not.
func serverTLS(c *listenerv3.FilterChain) *tlsv3.DownstreamTlsContext {
	context := &tlsv3.DownstreamTlsContext{}
	if c.GetTransportSocket().GetTypedConfig().UnmarshalTo(context) != nil {
		return nil
	}
	return context
}

// identify settles who the client is for a filter chain that is chosen by more than the client's certificate. refused
// says why the connection is closed; "" if it is not.
func (x *explainer) identify(c *listenerv3.FilterChain) (refused string) {
	tls := serverTLS(c)
	required := tls.GetRequireClientCertificate().GetValue()
	switch {
	case x.Client.Principal == "":
		x.hidden = required
		return ""
	case required || tls.GetCommonTlsContext().GetValidationContextType() != nil:
		return x.handshake(tls)
	}
	x.add("client", x.Client.Principal, "", "the listener does not ask for its certificate")
	x.Client.Principal = ""
	return ""
}

// handshake says why the TLS handshake with the certificate of the client fails; "" if it does not.
func (x *explainer) handshake(tls *tlsv3.DownstreamTlsContext) (refused string) {
	common := tls.GetCommonTlsContext()
	context := common.GetValidationContext()
	if combined := common.GetCombinedValidationContext(); combined != nil {
		context = combined.GetDefaultValidationContext()
	}
	//lint:ignore SA1019 Envoy reads both, and the mesh's own listeners have these, as with istiod.
	names := slices.Clone(context.GetMatchSubjectAltNames())
	for _, m := range context.GetMatchTypedSubjectAltNames() {
		if m.GetSanType() == tlsv3.SubjectAltNameMatcher_URI {
			names = append(names, m.GetMatcher())
		}
	}
	typed := len(context.GetMatchTypedSubjectAltNames()) > 0
	if len(names) == 0 && !typed || context.GetTrustChainVerification() == tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED ||
		slices.ContainsFunc(names, func(m *matcherv3.StringMatcher) bool { return routing.Text(m, x.Client.Principal) }) {
		return ""
	}
	var accepted []string
	domains := true // it accepts all identities of some trust domains
	for _, m := range names {
		domain, isURI := strings.CutPrefix(m.GetPrefix(), "spiffe://")
		domain, isDomain := strings.CutSuffix(domain, "/")
		domains = domains && isURI && isDomain
		accepted = append(accepted, cmp.Or(domain, strings.Join(strings.Fields(m.String()), " ")))
	}
	if domains {
		of, _, _ := strings.Cut(strings.TrimPrefix(x.Client.Principal, "spiffe://"), "/")
		return fmt.Sprintf("closed: the TLS handshake fails: the trust domain %s of the client is none of those that the listener accepts (%s)", of, strings.Join(accepted, ", "))
	}
	return fmt.Sprintf("closed: the TLS handshake fails: the identity %s of the client is none of those that the listener accepts (%s)", x.Client.Principal, strings.Join(accepted, ", "))
}
