package store

import (
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Storable says whether a resource may be written to disk, and if not, why.
// do_not_cache is honoured always. What is encrypted may hold anything; in plain
// text no Secret is stored, and nothing that sensitive finds a secret in: it looks
// into a message and says what it found, "" for nothing. redact.Finder has one.
//
// It may decode the resource, and is not for the data path.
func Storable(r *xds.Resource, encrypted bool, sensitive func(*anypb.Any) string) (ok bool, why string) {
	switch {
	case r.CacheControl().GetDoNotCache():
		return false, whyCache
	case r.Body != nil && r.Body.TypeUrl != r.Type:
		return false, whyType
	case len(r.Body.GetValue()) >= maxPayload, len(r.Aliases()) > maxAliases:
		return false, whyTooLarge
	case encrypted:
		return true, ""
	case r.Type == xds.SecretType:
		return false, whySecret
	}
	if r.Body != nil {
		why = sensitive(r.Body)
	}
	if why == "" && r.Metadata() != nil {
		metadata, err := anypb.New(r.Metadata())
		if err != nil {
			return false, whyMessage
		}
		why = sensitive(metadata)
	}
	return why == "", why
}
