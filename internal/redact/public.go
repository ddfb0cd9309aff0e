package redact

import "google.golang.org/protobuf/types/known/anypb"

// The fields of a Secret that everybody may know.
const (
	secretName        = 1
	validationContext = 4
)

// Public reports whether a Secret (SDS) has nothing but its name and a validation context, by which peers are verified: certificates
// of CAs, revocation lists, names. It looks at the bytes, so that a field that a reader would not see counts, too. What is secret
// within a validation context, Sensitive finds, but for private keys, which are not public here either.
func Public(secret *anypb.Any) bool {
	b, found := secret.GetValue(), false
	if hasPrivateKey(b) {
		return false
	}
	for len(b) > 0 {
		field, rest, ok := nextField(b)
		if !ok || field.num != secretName && field.num != validationContext {
			return false
		}
		b, found = rest, found || field.num == validationContext
	}
	return found
}
