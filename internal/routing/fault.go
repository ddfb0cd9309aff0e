package routing

import (
	"fmt"
	"strings"

	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// Fault says what faults a filter injects; always is the outcome if all requests are aborted.
func Fault(fault *faultv3.HTTPFault) (text, always string) {
	percent := func(p *typev3.FractionalPercent) float64 {
		return 100 * float64(p.GetNumerator()) / float64(denominators[p.GetDenominator()])
	}
	var texts []string
	if d := fault.GetDelay(); d != nil {
		texts = append(texts, fmt.Sprintf("%g %% are delayed by %v", percent(d.GetPercentage()), d.GetFixedDelay().AsDuration()))
	}
	if a := fault.GetAbort(); a != nil {
		status := fmt.Sprintf("%d", a.GetHttpStatus())
		if a.GetHttpStatus() == 0 {
			status = fmt.Sprintf("the gRPC status %d", a.GetGrpcStatus())
		}
		texts = append(texts, fmt.Sprintf("%g %% are aborted with %s", percent(a.GetPercentage()), status))
		if percent(a.GetPercentage()) >= 100 {
			always = status + ": all requests are aborted by the fault"
		}
	}
	return strings.Join(texts, ", "), always
}
