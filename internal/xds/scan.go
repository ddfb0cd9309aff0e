package xds

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

// MaxNameBytes is the maximum length of a resource name. Real names stay below 1 KiB.
const MaxNameBytes = 8 << 10

// ErrNoName: a body has no name.
var ErrNoName = errors.New("resource has no name")

// ErrMalformed: a body is not the wire form of any message.
var ErrMalformed = errors.New("malformed protobuf")

// fieldName is the field number of the name in every type but those of nameFields.
const fieldName = 1

// nameFields are the types that have their name in another field, with its number.
var nameFields = map[string]protowire.Number{FilterChainType: 7}

// ScanName reads the resource name from the wire form of a body: the string in the field of its type, the last
// one if it is repeated, as in proto3. The error wraps ErrNoName if the field is absent or empty, and
// ErrMalformed if the top-level fields are not well-formed.
func ScanName(body *anypb.Any) (string, error) {
	name, err := scanName(body)
	if err != nil {
		return "", err
	}
	if len(name) == 0 {
		if field := nameField(body); field != fieldName {
			return "", fmt.Errorf("%w: its name (field %d) is missing or empty", ErrNoName, field)
		}
		return "", fmt.Errorf("%w: its name (of endpoints, cluster_name) is missing or empty", ErrNoName)
	}
	return CheckName(name)
}

func nameField(body *anypb.Any) protowire.Number {
	if other, is := nameFields[body.GetTypeUrl()]; is {
		return other
	}
	return fieldName
}

// namelessTypes are the types without names. Field 1 of their bodies is something else, which the
// bytes do not show, so the types are listed.
var namelessTypes = map[string]bool{
	googleapis + "istio.networking.nds.v1.NameTable": true, // field 1 is a map
	googleapis + "istio.mesh.v1alpha1.ProxyConfig":   true, // field 1 is config_path
}

// Nameless reports whether the resources of a type have no name. Such a type has one resource at
// most, under the name "".
func Nameless(typeURL string) bool { return namelessTypes[typeURL] }

// nameIn returns the name in a body: see ScanName. It is "" for a type without names.
func nameIn(typeURL string, body *anypb.Any) (string, error) {
	if !Nameless(typeURL) {
		return ScanName(body)
	}
	return "", scanFields(body.GetValue(), func(protowire.Number, protowire.Type, []byte) error { return nil })
}

// scanName returns the value of the field with the name, not copied and not checked.
func scanName(body *anypb.Any) (name []byte, err error) {
	field := nameField(body)
	err = scanFields(body.GetValue(), func(num protowire.Number, typ protowire.Type, val []byte) error {
		if num != field {
			return nil
		}
		if typ != protowire.BytesType {
			return fmt.Errorf("field %d, the name, has wire type %d: want a string", num, typ)
		}
		name = val
		return nil
	})
	return name, err
}

// CheckName converts a name from the wire. It fails if the name is empty, not UTF-8 or longer than
// MaxNameBytes.
func CheckName[B []byte | string](name B) (string, error) {
	switch {
	case len(name) == 0:
		return "", ErrNoName
	case len(name) > MaxNameBytes:
		return "", fmt.Errorf("resource name of %d bytes: at most %d are accepted", len(name), MaxNameBytes)
	}
	s := string(name)
	if !utf8.ValidString(s) {
		return "", fmt.Errorf("resource name is not UTF-8: %q", s[:min(len(s), 64)])
	}
	return s, nil
}

// Field numbers of envoy.config.cluster.v3.Cluster and its EdsClusterConfig.
const (
	clusterType             = 2  // DiscoveryType, a varint
	clusterEDSConfig        = 3  // EdsClusterConfig
	clusterCustomType       = 38 // CustomClusterType, in a oneof with DiscoveryType
	edsConfigServiceName    = 2
	clusterDiscoveryTypeEDS = 3 // Cluster.EDS
)

// EDSName returns the name of the endpoints of a cluster of type EDS:
// eds_cluster_config.service_name or, if that is empty, the name of the cluster (protocol.md 4.1).
// It returns "" for a cluster of another type. name is the name of the cluster.
func EDSName(name string, cluster []byte) (string, error) {
	var discovery int32
	var service []byte
	err := scanFields(cluster, func(num protowire.Number, typ protowire.Type, val []byte) error {
		switch {
		case num == clusterType && typ == protowire.VarintType:
			n, _ := protowire.ConsumeVarint(val)
			discovery = int32(n) // an enum, of which proto3 keeps 32 bits
		case num == clusterCustomType && typ == protowire.BytesType:
			discovery = 0
		case num == clusterEDSConfig && typ == protowire.BytesType:
			return scanFields(val, func(num protowire.Number, typ protowire.Type, val []byte) error {
				if num == edsConfigServiceName && typ == protowire.BytesType {
					service = val
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("cluster %q: %w", name, err)
	}
	if discovery != clusterDiscoveryTypeEDS {
		return "", nil
	}
	if len(service) == 0 {
		return name, nil
	}
	eds, err := CheckName(service)
	if err != nil {
		return "", fmt.Errorf("cluster %q: service_name: %w", name, err)
	}
	return eds, nil
}

// scanFields calls visit for each top-level field of a message. val is the value without its tag
// and, for strings and messages, without its length. An error of visit ends the scan.
func scanFields(msg []byte, visit func(num protowire.Number, typ protowire.Type, val []byte) error) error {
	for at := 0; at < len(msg); {
		num, typ, n := protowire.ConsumeTag(msg[at:])
		if n < 0 {
			return fmt.Errorf("%w at byte %d: %w", ErrMalformed, at, protowire.ParseError(n))
		}
		at += n
		size := protowire.ConsumeFieldValue(num, typ, msg[at:])
		if size < 0 {
			return fmt.Errorf("%w at byte %d, field %d: %w", ErrMalformed, at, num, protowire.ParseError(size))
		}
		val := msg[at : at+size]
		at += size
		if typ == protowire.BytesType {
			val, _ = protowire.ConsumeBytes(val)
		}
		if err := visit(num, typ, val); err != nil {
			return err
		}
	}
	return nil
}

// Field numbers of envoy.config.endpoint.v3.ClusterLoadAssignment and its Policy.
const (
	assignmentPolicy   = 4
	endpointStaleAfter = 4
)

// goesStale reports whether endpoints have an endpoint_stale_after.
func goesStale(assignment []byte) (stale bool) {
	// What is malformed has none, and is rejected elsewhere.
	_ = scanFields(assignment, func(num protowire.Number, typ protowire.Type, policy []byte) error {
		if num != assignmentPolicy || typ != protowire.BytesType {
			return nil
		}
		return scanFields(policy, func(num protowire.Number, typ protowire.Type, _ []byte) error {
			stale = stale || num == endpointStaleAfter && typ == protowire.BytesType
			return nil
		})
	})
	return stale
}
