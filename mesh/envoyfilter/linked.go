package envoyfilter

import (
	_ "istio.io/api/envoy/config/filter/http/alpn/v2alpha1"
	_ "istio.io/api/envoy/config/filter/network/metadata_exchange"
	_ "istio.io/api/envoy/config/filter/network/tcp_cluster_rewrite/v2alpha1"
	_ "istio.io/api/envoy/extensions/stats"

	_ "github.com/holdfast-xds/holdfast/internal/envoytypes/linked"
)

// A patch may have any message of Envoy, or of Istio's own filters. They are linked, because the rules
// of a message are part of its generated code.
