package routing

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// denominators are the numbers of equal parts of which a fraction takes some. Each divides the next.
var denominators = map[typev3.FractionalPercent_DenominatorType]int{
	typev3.FractionalPercent_HUNDRED: 100, typev3.FractionalPercent_TEN_THOUSAND: 10_000, typev3.FractionalPercent_MILLION: 1_000_000,
}

// shares divides requests between routes. Envoy draws one random number for a request and compares it with the fraction
// of each route: two routes that each take a half take the same half.
type shares struct {
	taken []bool // by the remainder of the random number
	left  int    // how many are not taken
}

// newShares makes the shares of routes: as many parts as the finest of their fractions has.
func newShares(routes []*routev3.Route) *shares {
	parts := 1
	for _, r := range routes {
		if f := r.GetMatch().GetRuntimeFraction(); f != nil {
			parts = max(parts, denominators[f.GetDefaultValue().GetDenominator()])
		}
	}
	return &shares{make([]bool, parts), parts}
}

// take returns the share of the requests that a route takes: those of its fraction, nil for all, that are left. keep says
// that no later route gets them.
func (s *shares) take(fraction *corev3.RuntimeFractionalPercent, keep bool) float64 {
	n := s.left
	if fraction == nil {
		if keep {
			s.left = 0
		}
		return float64(n) / float64(len(s.taken))
	}
	of := denominators[fraction.GetDefaultValue().GetDenominator()]
	numerator := min(int(fraction.GetDefaultValue().GetNumerator()), of)
	n = 0
	for i, taken := range s.taken {
		if taken || i%of >= numerator {
			continue
		}
		n++
		if keep {
			s.taken[i] = true
		}
	}
	if keep {
		s.left -= n
	}
	return float64(n) / float64(len(s.taken))
}
