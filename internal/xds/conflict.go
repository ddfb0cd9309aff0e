package xds

import "google.golang.org/protobuf/encoding/protowire"

// conflictKeyFields are the fields that say which place a resource takes: what no other of its type may
// have beside it. Envoy refuses a second listener of an address, and a second scope of a key.
var conflictKeyFields = map[string]protowire.Number{
	ListenerType:    2, // address
	ScopedRouteType: 3, // key
}

// additionalAddresses is a listener's field of messages whose first field is an address.
const additionalAddresses = 33

// ConflictKeys returns the places that a listener or scope takes, as keys that are equal for equal
// places; nil for other types. It stops where the body is malformed.
func ConflictKeys(r *Resource) (keys []string) {
	field, takes := conflictKeyFields[r.Type]
	if !takes {
		return nil
	}
	_ = scanFields(r.Body.GetValue(), func(num protowire.Number, typ protowire.Type, val []byte) error {
		switch {
		case typ != protowire.BytesType:
		case num == additionalAddresses && r.Type == ListenerType:
			return scanFields(val, func(num protowire.Number, typ protowire.Type, val []byte) error {
				if num == 1 && typ == protowire.BytesType {
					keys = append(keys, string(val))
				}
				return nil
			})
		case num == field && len(val) > 0:
			keys = append(keys, string(val))
		}
		return nil
	})
	return keys
}
