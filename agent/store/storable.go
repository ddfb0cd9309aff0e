package store

import (
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// NotStorable returns why a resource must not be written to disk, "" if it may: do_not_cache or, without
// encryption, a Secret or a message in which sensitive finds a secret (see redact.Finder). It may decode the
// resource, and is too slow for each update.
func NotStorable(r *xds.Resource, encrypted bool, sensitive func(*anypb.Any) string) (why string) {
	why = unstorable(r, encrypted)
	if why == "" && !encrypted && r.Body != nil {
		why = sensitive(r.Body)
	}
	if why == "" && !encrypted && r.Metadata() != nil {
		metadata, err := anypb.New(r.Metadata())
		if err != nil {
			return reasonMessage
		}
		why = sensitive(metadata)
	}
	return why
}

// unstorable returns the reason that does not depend on the content; "" for none.
func unstorable(r *xds.Resource, encrypted bool) string {
	switch {
	case r.CacheControl().GetDoNotCache():
		return reasonCache
	case r.Body != nil && r.Body.TypeUrl != r.Type:
		return reasonType
	case len(r.Body.GetValue()) >= maxPayload, len(r.Aliases()) > maxAliases:
		return reasonTooLarge
	case !encrypted && r.Type == xds.SecretType:
		return reasonSecret
	}
	return ""
}
