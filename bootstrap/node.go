package bootstrap

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Node is the identity that Envoy presents to the control plane.
type Node struct {
	// ID and Cluster are required: Envoy does not start xDS without them.
	ID, Cluster string
	// Locality is "region", "region/zone" or "region/zone/subzone"; a part may be empty. Empty for none.
	Locality string
	// Metadata contains JSON values: nil, bool, string, numbers, []any and map[string]any. Protobuf stores every number as
	// a double; an integer that a double cannot represent exactly is an error.
	Metadata map[string]any
}

// Proto returns the node of the bootstrap, without user agent, extensions and client features, which Envoy adds. An error
// names the flag that is missing or wrong.
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
		if node.Metadata, err = exactStruct(n.Metadata); err != nil {
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

// maxExactInteger is the largest magnitude up to which a double represents every integer.
const maxExactInteger = 1 << 53

// exactStruct converts values that checkValue accepts.
func exactStruct(values map[string]any) (*structpb.Struct, error) {
	if err := checkValue("", values); err != nil {
		return nil, err
	}
	return structpb.NewStruct(values)
}

// checkValue returns an error that says where v contains something that metadata cannot represent; path is the path of v.
// structpb would reject other types without saying where, and would round numbers.
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
	case int8, int16, int32, uint8, uint16, uint32:
	case int, int64:
		if n := reflect.ValueOf(v).Int(); n > maxExactInteger || n < -maxExactInteger {
			err = fmt.Errorf("is %d, which protobuf would round: write it as a string", n)
		}
	case uint, uint64:
		if n := reflect.ValueOf(v).Uint(); n > maxExactInteger {
			err = fmt.Errorf("is %d, which protobuf would round: write it as a string", n)
		}
	case []any:
		for i, e := range v {
			if err := checkValue(fmt.Sprintf("%s[%d]", path, i), e); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) { // sorted, so that the error is always the same
			if !utf8.ValidString(k) {
				return fmt.Errorf("key %q is not valid UTF-8", k)
			}
			if err := checkValue(strings.TrimPrefix(path+"."+k, "."), v[k]); err != nil {
				return err
			}
		}
	default:
		err = fmt.Errorf("has the Go type %T, which is not a JSON value", v)
	}
	if err != nil {
		return fmt.Errorf("%s %w", path, err)
	}
	return nil
}
