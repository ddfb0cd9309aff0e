package config

import "slices"

// Code is the stable name of what a warning is about: "HM" and four digits, of which the first two are its group. A code never gets another
// meaning, and one that is not used any more is not used again. "" is that of an error, which Report calls InvalidDocument.
type Code string

// severity returns that of problems with a code.
func (c Code) severity() Severity {
	if c == "" {
		return SeverityError
	}
	return SeverityWarning
}

// The codes. Codes describes each of them.
const (
	// InvalidDocument is the code of every error.
	InvalidDocument    Code = "HM0001"
	KindIgnored        Code = "HM0002"
	KeyIgnored         Code = "HM0003"
	UnknownSuppression Code = "HM0004"
	StoreKeyIgnored    Code = "HM0010"
	StoreLacks         Code = "HM0011"
	AgesUnknown        Code = "HM0012"
	OwnerByTimestamp   Code = "HM0013"

	FieldNotSupported  Code = "HM0101"
	NoEffect           Code = "HM0102"
	Repeated           Code = "HM0103"
	SelectsAll         Code = "HM0104"
	MatchesNothing     Code = "HM0105"
	RouteUnreachable   Code = "HM0106"
	Deprecated         Code = "HM0107"
	OnlyFirstUsed      Code = "HM0108"
	LargeBody          Code = "HM0109"
	ProtocolNotProxied Code = "HM0110"
	LocalityIncomplete Code = "HM0111"
	HashWithoutKey     Code = "HM0112"
	NoAddress          Code = "HM0113"
	NetworkIncomplete  Code = "HM0114"
	ComparedAsWritten  Code = "HM0115"
	NoCertificate      Code = "HM0116"
	PrivateKey         Code = "HM0117"
	NoUsableKey        Code = "HM0118"
	DeniesConnections  Code = "HM0119"
	PortOfProxies      Code = "HM0120"

	UnknownHost                 Code = "HM0201"
	UnknownPort                 Code = "HM0202"
	UnknownSubset               Code = "HM0203"
	UnknownGateway              Code = "HM0204"
	UnknownDelegate             Code = "HM0205"
	UnknownSecret               Code = "HM0206"
	UnknownProvider             Code = "HM0207"
	GatewayOfNetworkUnreachable Code = "HM0208"
	UnknownRuleHost             Code = "HM0209"
	SubsetSelectsNothing        Code = "HM0210"
	GatewayPortWithoutService   Code = "HM0211"
	HostNotInGateway            Code = "HM0212"

	SelectsNothing Code = "HM0301"
	SameWorkloads  Code = "HM0302"

	ContestedService       Code = "HM0401"
	ContestedRequests      Code = "HM0402"
	ContestedConnections   Code = "HM0403"
	ContestedTrafficPolicy Code = "HM0404"
	HostOfAnotherNamespace Code = "HM0405"
	ProtocolConflict       Code = "HM0406"
	TooMuchTogether        Code = "HM0410"
	ContestedNetwork       Code = "HM0411"
	AutomaticRange         Code = "HM0412"
	NameOfService          Code = "HM0413"

	RuleWithoutEffect   Code = "HM0501"
	AllowsNothing       Code = "HM0502"
	OpensWhatIsClosed   Code = "HM0503"
	NoTokenRequired     Code = "HM0504"
	PoliciesNotCompared Code = "HM0505"
	UnverifiedServer    Code = "HM0506"
	ClaimWithoutTokens  Code = "HM0507"

	GatewayAPINotFound        Code = "HM0601"
	GatewayAPINotPermitted    Code = "HM0602"
	GatewayAPINotAllowed      Code = "HM0603"
	GatewayAPICertificates    Code = "HM0604"
	GatewayAPIConflict        Code = "HM0605"
	GatewayAPINotServed       Code = "HM0606"
	GatewayAPIOtherController Code = "HM0607"
)

// CodeGroup is what codes that begin alike have in common.
type CodeGroup struct{ Prefix, Title string }

// CodeGroups are the groups of codes, in the order of their prefixes.
var CodeGroups = []CodeGroup{
	{"HM00", "Documents and the store"},
	{"HM01", "A document by itself"},
	{"HM02", "References to what no document defines"},
	{"HM03", "Selectors"},
	{"HM04", "What two documents ask for"},
	{"HM05", "Policies about who may do what"},
	{"HM06", "The Gateway API"},
}

// CodeInfo describes a code.
type CodeInfo struct {
	Code Code
	// Meaning says what is wrong, and what follows from it; Remedy says what to do.
	Meaning, Remedy string
	// Istio are the codes of `istioctl analyze` for the same, which the annotation of Istio (IstioSuppressAnnotation) may name.
	Istio []string
}

// Codes are all codes, in order.
var Codes = []CodeInfo{
	{InvalidDocument, "An error: the document is not used, and its last valid content, if it had any, stays in use. It cannot be suppressed.", "Correct the field that the message names.", []string{"IST0106"}},
	{KindIgnored, "The document is of a kind that is not read.", "Leave it out, or keep it for others who read it.", nil},
	{KeyIgnored, "A key of the ConfigMap of the mesh is not read.", "Leave the key out.", nil},
	{UnknownSuppression, "The annotation `" + SuppressAnnotation + "` names what is not a code.", "Write codes of this page, separated by commas.", nil},
	{StoreKeyIgnored, "etcd has a key below the prefix of the documents that is not that of a document.", "Delete the key, or use another `--etcd-prefix`.", nil},
	{StoreLacks, "etcd was restored and lacks the document, which stays in use for a while.", "Apply the document again if it is to stay.", nil},
	{AgesUnknown, "The ages that documents had before etcd counted them cannot be read.", "Give servers read and write access to them.", nil},
	{OwnerByTimestamp, "A document has what another one asks for because of its creationTimestamp, though etcd has had the other one for longer.", "Delete and apply the document again if the other one is to have it.", nil},

	{FieldNotSupported, "The field has no effect, because holdfast-mesh does not support it ([mesh-api.md](mesh-api.md) lists all fields).", "Leave the field out, or write what the message says.", nil},
	{NoEffect, "The field has no effect beside the others of the document.", "Leave it out, or change the field on which it depends.", nil},
	{Repeated, "An element repeats an earlier one, or an earlier one contains it.", "Leave one of them out.", nil},
	{SelectsAll, "A selector without labels applies to all workloads of the namespace.", "Leave the selector out if that is meant, or name labels.", nil},
	{MatchesNothing, "A value matches nothing that there can be.", "Correct the value.", nil},
	{RouteUnreachable, "No request reaches a route, or a match of it, because those before it take all that it matches.", "Put the narrower route first, or leave it out.", []string{"IST0130", "IST0131"}},
	{Deprecated, "The document uses an old form.", "Write the form that the message names.", []string{"IST0002", "IST0135"}},
	{OnlyFirstUsed, "Several are given, and not all of them are used.", "Leave out those that are not to be used.", nil},
	{LargeBody, "A body of a response is large, and is sent to every proxy.", "Let a service answer.", nil},
	{ProtocolNotProxied, "The protocol is not proxied.", "Leave the port or listener out, or write another protocol.", nil},
	{LocalityIncomplete, "What is said of localities has no effect as it is.", "Add what the message names.", nil},
	{HashWithoutKey, "Consistent hashing has no key, so that requests are distributed at random.", "Name a header, a cookie, a query parameter or the source IP.", nil},
	{NoAddress, "A workload has no address, and is reached through the gateways of its network only.", "Write the address.", nil},
	{NetworkIncomplete, "An element of MeshNetworks says nothing, or is used for some services only.", "Write what the message names.", nil},
	{ComparedAsWritten, "A character that looks special is compared as it is.", "Write the form that the message names.", nil},
	{NoCertificate, "TLS is asked for, and there is no certificate.", "Name a Secret with the certificate.", nil},
	{PrivateKey, "A private key is where a public one is expected, and is sent to proxies.", "Write the public key, and replace the private one: others have read it.", nil},
	{NoUsableKey, "There is no key with which tokens can be verified, so that none is accepted.", "Write a JWKS with a public key.", nil},
	{DeniesConnections, "A rule denies all connections of ports that are not HTTP.", "Name the ports.", nil},
	{PortOfProxies, "Sidecars have the port for themselves (`proxyListenPort` and `proxyInboundListenPort` of the MeshConfig), and do not listen there for what the document says.", "Use another port.", nil},

	{UnknownHost, "No document defines the host: requests that are sent there get 503.", "Correct the name, or add the Service or ServiceEntry.", []string{"IST0101"}},
	{UnknownPort, "The service has no such port: requests that are sent there get 503.", "Correct the number, or add the port.", []string{"IST0101"}},
	{UnknownSubset, "No DestinationRule of the host has the subset: requests that are sent there get 503.", "Correct the name, or add the subset.", []string{"IST0101"}},
	{UnknownGateway, "No document defines the Gateway: what refers to it has no effect there.", "Correct the name, written as namespace/name, or add the Gateway.", []string{"IST0101"}},
	{UnknownDelegate, "No document defines the VirtualService to which a route delegates, or it is not a delegate.", "Correct the name, or write a VirtualService without hosts.", []string{"IST0101"}},
	{UnknownSecret, "No document defines the Secret: the connections that need it fail.", "Correct the name, or add the Secret in the namespace of the proxies.", []string{"IST0101", "IST0161"}},
	{UnknownProvider, "The MeshConfig has no such provider, or it does something else.", "Correct the name, or add it to `extensionProviders`.", []string{"IST0101"}},
	{GatewayOfNetworkUnreachable, "The gateway of a network is not reached.", "Correct what the message names.", nil},
	{UnknownRuleHost, "No document defines the host of a DestinationRule, which has no effect.", "Correct the name, or add the Service or ServiceEntry.", []string{"IST0101"}},
	{SubsetSelectsNothing, "None of the endpoints that documents describe has the labels of a subset: requests that are sent there get 503. Nothing is said of a host without described endpoints.", "Correct the labels of the subset or of the workloads.", nil},
	{GatewayPortWithoutService, "No Service of the proxies of a Gateway has the port of a server, so that it is not reached through the Service.", "Correct the port, or add it to the Service.", []string{"IST0162"}},
	{HostNotInGateway, "No server of the Gateway has any of the hosts of a VirtualService, or none of its Gateways has one of them: there is no request there.", "Correct the host, or add it to a server, for the namespace of the VirtualService.", []string{"IST0132"}},

	{SelectsNothing, "The labels select none of the workloads that documents describe. Nothing is said of a namespace without such documents.", "Correct the labels.", []string{"IST0127"}},
	{SameWorkloads, "Two documents are for the same workloads, and the older one alone is used.", "Join them, or give them different selectors.", []string{"IST0110", "IST0111", "IST0159", "IST0160"}},

	{ContestedService, "Two services have one host.", "Give them different hosts, or different `exportTo`.", nil},
	{ContestedRequests, "Two VirtualServices are for the requests of one host, and the older one has them.", "Join them, or give them different hosts, gateways or `exportTo`.", []string{"IST0109"}},
	{ContestedConnections, "Two Gateways of the same proxies are for the same connections of a port, and the older one has them.", "Give them different hosts, ports or selectors.", []string{"IST0145"}},
	{ContestedTrafficPolicy, "Two DestinationRules of a namespace have a traffic policy of one host, and that of the older one counts.", "Join them.", nil},
	{HostOfAnotherNamespace, "The host is another namespace's, so that only proxies of the document's own namespace have it from this document.", "Write it in the namespace whose it is, or restrict it with `exportTo`.", nil},
	{ProtocolConflict, "One port of a host has two protocols, and that of the older document counts.", "Write one protocol, or two ports.", nil},
	{TooMuchTogether, "Two documents, each within its bounds, make more together than one may make by itself ([mesh.md](mesh.md#how-much-one-document-may-make)): the message says what is left out.", "Divide the larger one, or give it fewer hosts, matches, subsets or ports.", nil},
	{ContestedNetwork, "A Service is to be a gateway of a network that has gateways of the root namespace or, if it has none there, of an older Service's namespace: it is none.", "Write the gateways of a network into one namespace, or give the network another name.", nil},
	{AutomaticRange, "An address is of the range from which services without one are given theirs. It is not that of a ServiceEntry while an older service was given it.", "Write an address of your own network, or leave it out.", nil},
	{NameOfService, "A host is another name of a Service of Kubernetes in another namespace: a short name, one of a single endpoint, or an address. The Service has it for proxies of other namespaces.", "Write the host of the Service in full, or leave it out.", nil},

	{RuleWithoutEffect, "Another policy takes all that a rule takes, with the same action.", "Leave one of them out.", nil},
	{AllowsNothing, "Another policy denies all that a rule allows.", "Leave the rule out, or narrow the other policy.", nil},
	{OpensWhatIsClosed, "A policy opens what another one closes.", "Narrow its selector or its rule, if that is not meant.", nil},
	{NoTokenRequired, "Tokens are verified, and requests without one pass.", "Add an AuthorizationPolicy with `requestPrincipals`.", nil},
	{PoliciesNotCompared, "There are too many policies to compare them all.", "Join policies.", nil},
	{UnverifiedServer, "TLS of a DestinationRule names no CAs, and the mesh does not verify certificates without them: anybody may be the server.", "Name `caCertificates` or a `credentialName`, or set `verifyCertificateAtClient`.", []string{"IST0128", "IST0129"}},
	{ClaimWithoutTokens, "A route is chosen by a claim of a token, and nobody verifies tokens, so that no request has one.", "Add a RequestAuthentication for the proxies that route.", []string{"IST0149"}},

	{GatewayAPINotFound, "What is referred to does not exist, or is of a kind that cannot be referred to.", "Correct the reference, or add what it names.", []string{"IST0101"}},
	{GatewayAPINotPermitted, "A reference to another namespace is not permitted.", "Add a ReferenceGrant in that namespace.", nil},
	{GatewayAPINotAllowed, "No listener of the Gateway takes the route.", "Correct its hostnames or `parentRefs`, or the listener's `allowedRoutes`.", nil},
	{GatewayAPICertificates, "A certificate, or that of an authority, cannot be used.", "Correct the Secret or the ConfigMap.", nil},
	{GatewayAPIConflict, "Two documents or listeners are for the same.", "Leave one of them out, or give them different hosts.", nil},
	{GatewayAPINotServed, "Something is asked for that holdfast-mesh does not do.", "Write what the message names.", nil},
	{GatewayAPIOtherController, "The document is for another controller.", "Leave it for that one, or name the class of holdfast-mesh.", nil},
}

// CodeOf returns the description of a code; nil if there is no such code.
func CodeOf(code Code) *CodeInfo {
	i, found := slices.BinarySearchFunc(Codes, code, func(info CodeInfo, code Code) int {
		switch {
		case info.Code < code:
			return -1
		case info.Code > code:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &Codes[i]
}
