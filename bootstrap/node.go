package bootstrap

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Node is the identity that Envoy presents to the control plane.
type Node struct {
	// ID and Cluster are required: Envoy refuses to start xDS without them.
	ID, Cluster string

	// Locality is "region", "region/zone" or "region/zone/subzone"; a part may be empty. Empty: none.
	Locality string

	// Metadata holds JSON values: nil, bool, string, numbers, []any and map[string]any. Protobuf keeps every number as a
	// double, so an integer that a double cannot hold exactly is refused rather than changed.
	Metadata map[string]any
}

// Proto returns the node as it stands in the bootstrap. It names no user agent, no extensions and no client features:
// Envoy fills those in. An error names the flag that is missing or wrong.
func (n Node) Proto() (*corev3.Node, error) {
	for _, f := range []struct{ flag, value string }{
		{"--node-id", n.ID},
		{"--node-cluster", n.Cluster},
	} {
		if f.value == "" {
			return nil, fmt.Errorf("bootstrap: %s is required: Envoy does not start xDS without it", f.flag)
		}
		if !utf8.ValidString(f.value) {
			return nil, fmt.Errorf("bootstrap: %s %q is not valid UTF-8", f.flag, f.value)
		}
	}
	locality, err := parseLocality(n.Locality)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: --node-locality: %w", err)
	}
	node := &corev3.Node{Id: n.ID, Cluster: n.Cluster, Locality: locality}
	if len(n.Metadata) > 0 {
		if err := checkValue("", n.Metadata); err != nil {
			return nil, fmt.Errorf("bootstrap: --node-metadata: %w", err)
		}
		if node.Metadata, err = structpb.NewStruct(n.Metadata); err != nil {
			return nil, fmt.Errorf("bootstrap: --node-metadata: %w", err)
		}
	}
	return node, nil
}

// parseLocality returns nil for an empty s.
func parseLocality(s string) (*corev3.Locality, error) {
	if s == "" {
		return nil, nil
	}
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("%q is not valid UTF-8", s)
	}
	parts := strings.Split(s, "/")
	if len(parts) > 3 || strings.Trim(s, "/") == "" {
		return nil, fmt.Errorf("%q is not of the form region/zone/subzone", s)
	}
	parts = append(parts, "", "")
	return &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}, nil
}

// maxExactInteger is the largest magnitude below which every integer is a double.
const maxExactInteger = 1 << 53

// checkValue says where in v something is that metadata cannot carry; path is the place of v itself. structpb refuses
// other types on its own account, but says neither where nor that a number was changed.
func checkValue(path string, v any) error {
	var err error
	switch v := v.(type) {
	case nil, bool:
	case string:
		if !utf8.ValidString(v) {
			err = errors.New("is not valid UTF-8")
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			err = fmt.Errorf("is %v, which JSON cannot express", v)
		}
	case float32:
		return checkValue(path, float64(v))
	case int:
		return checkValue(path, int64(v))
	case int8, int16, int32, uint8, uint16, uint32:
	case int64:
		if v > maxExactInteger || v < -maxExactInteger {
			err = fmt.Errorf("is %d, which protobuf would round: give it as a string", v)
		}
	case uint:
		return checkValue(path, uint64(v))
	case uint64:
		if v > maxExactInteger {
			err = fmt.Errorf("is %d, which protobuf would round: give it as a string", v)
		}
	case []any:
		for i, e := range v {
			if err := checkValue(fmt.Sprintf("%s[%d]", path, i), e); err != nil {
				return err
			}
		}
	case map[string]any:
		return checkMap(path, v)
	default:
		err = fmt.Errorf("has the Go type %T, which is no JSON value", v)
	}
	if err != nil {
		return fmt.Errorf("%s %w", path, err)
	}
	return nil
}

func checkMap(path string, m map[string]any) error {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys) // of several wrong values the same one is always named
	for _, k := range keys {
		if !utf8.ValidString(k) {
			return fmt.Errorf("key %q is not valid UTF-8", k)
		}
		at := k
		if path != "" {
			at = path + "." + k
		}
		if err := checkValue(at, m[k]); err != nil {
			return err
		}
	}
	return nil
}
