package gatewayapi

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// condition is a condition of a status. It is true, unless problem is set.
type condition struct {
	kind            string
	reason, message string
	// problem makes the condition false, or true for one whose truth is bad.
	problem *problem
	bad     bool
}

// problem is why something does not work: a reason of the Gateway API or, where that has none, of Istio.
type problem struct{ reason, message string }

// code returns the code of the warning of a problem.
func (p *problem) code() config.Code {
	switch p.reason {
	case string(gatewayv1.RouteReasonBackendNotFound), string(gatewayv1.RouteReasonNoMatchingParent), string(gatewayv1.RouteReasonInvalidKind), string(gatewayv1.PolicyReasonTargetNotFound):
		return config.GatewayAPINotFound
	case string(gatewayv1.RouteReasonRefNotPermitted):
		return config.GatewayAPINotPermitted
	case string(gatewayv1.RouteReasonNotAllowedByListeners), string(gatewayv1.RouteReasonNoMatchingListenerHostname):
		return config.GatewayAPINotAllowed
	case string(gatewayv1.ListenerReasonInvalidCertificateRef), string(gatewayv1.ListenerReasonInvalidCACertificateRef), string(gatewayv1.ListenerReasonInvalidCACertificateKind),
		string(gatewayv1.ListenerReasonNoValidCACertificate):
		return config.GatewayAPICertificates
	case string(gatewayv1.ListenerReasonHostnameConflict), string(gatewayv1.ListenerReasonProtocolConflict), string(gatewayv1.PolicyReasonConflicted):
		return config.GatewayAPIConflict
	}
	return config.GatewayAPINotServed
}

// conditions returns conditions of a document of a generation, in the order of their types. They have no time: nobody keeps the status,
// so that it is not known since when it is so.
func conditions(generation int64, list ...condition) []metav1.Condition {
	var out []metav1.Condition
	for _, c := range list {
		holds := (c.problem == nil) != c.bad
		one := metav1.Condition{Type: c.kind, Status: metav1.ConditionFalse, ObservedGeneration: generation, Reason: c.reason, Message: c.message}
		if holds {
			one.Status = metav1.ConditionTrue
		}
		if c.problem != nil {
			one.Reason, one.Message = c.problem.reason, c.problem.message
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b metav1.Condition) int {
		if a.Type < b.Type {
			return -1
		}
		return 1
	})
	return out
}
