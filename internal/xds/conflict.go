package xds

import "google.golang.org/protobuf/encoding/protowire"

// conflictKeyFields are the fields whose value no other resource of the type may have: Envoy NACKs
// a second listener with one address, and a second scope with one key.
var conflictKeyFields = map[string]protowire.Number{
	ListenerType:    2, // address
	ScopedRouteType: 3, // key
}

// additionalAddresses is a listener's field with messages whose first field is an address.
const additionalAddresses = 33

// ConflictKeys returns the address of a listener, or the key of a scope, as strings: two resources
// conflict if they have one in common. It returns nil for other types. It stops where the body is
// malformed.
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
