package xds

// Form is the wire form of an xDS stream. The zero value is neither.
type Form uint8

const (
	// SotW is the state-of-the-world form: a request lists all names that are subscribed to.
	SotW Form = iota + 1
	// Delta is the incremental form: a request lists the names that are subscribed to or
	// unsubscribed from since the last one.
	Delta
)

// String returns "sotw" or "delta", as in flags, logs and metrics.
func (f Form) String() string {
	switch f {
	case SotW:
		return "sotw"
	case Delta:
		return "delta"
	}
	return "unknown"
}
