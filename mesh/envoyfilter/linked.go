package envoyfilter

import (
	_ "istio.io/api/envoy/config/filter/http/alpn/v2alpha1"
	_ "istio.io/api/envoy/config/filter/network/metadata_exchange"
	_ "istio.io/api/envoy/config/filter/network/tcp_cluster_rewrite/v2alpha1"
	_ "istio.io/api/envoy/extensions/stats"

	_ "github.com/holdfast-xds/holdfast/internal/envoytypes/linked"
)

// A patch may have any message of Envoy, or of Istio's own filters. They are linked, because what Envoy rejects beyond the rules of
// fields (inner) is found by the Go types of messages, which those in a message that is not linked do not have.
