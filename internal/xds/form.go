package xds

// Form is the wire form of an xDS stream. The zero value is neither.
type Form uint8

const (
	// SotW is the state-of-the-world form: a request names everything that is wanted.
	SotW Form = iota + 1
	// Delta is the incremental form: a request names what is wanted more and less.
	Delta
)

// String returns "sotw" or "delta", as flags, logs and metrics say it.
func (f Form) String() string {
	switch f {
	case SotW:
		return "sotw"
	case Delta:
		return "delta"
	}
	return "unknown"
}
