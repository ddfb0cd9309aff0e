package e2e

import (
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// Two Envoys with certificates from two agents: each sees who the other is, whatever
// makes the certificates. Who has one of another authority is refused, and so is a
// server that is somebody else. What the agents own no control plane is asked for.
func TestTwoEnvoysTrustEachOther(t *testing.T) {
	for _, tc := range []struct {
		name           string
		above, below   xdstest.Protocol
		server, client origin
		// change, if any, changes the pods before anything starts.
		change func(*pods)
	}{
		{"an authority in a directory", xdstest.SotW, xdstest.Delta, fromDir, fromDir, nil},
		{"an authority in a directory, by trust domain", xdstest.Delta, xdstest.Delta, withSPIFFEValidator(fromDir), withSPIFFEValidator(fromDir), nil},
		{"an authority for development", xdstest.SotW, xdstest.SotW, fromDev, fromDev, nil},
		{"files of others, in TLS 1.2", xdstest.Delta, xdstest.SotW, fromFiles, fromFiles, func(p *pods) { p.version = tlsv3.TlsParameters_TLSv1_2 }},
		{"files by their names", xdstest.SotW, xdstest.SotW, fromNamedFiles, fromNamedFiles, nil},
		{"Istio's protocol, in a service of its own", xdstest.Delta, xdstest.Delta, fromIstio, fromIstio, inAService},
		{"SPIFFE's Workload API", xdstest.SotW, xdstest.Delta, fromSPIRE, trustingAll(fromSPIRE), nil},
		{"two trust domains, in a service of its own", xdstest.Delta, xdstest.SotW, trustingAll(fromSPIRE), trustingAll(fromSPIRE), func(p *pods) {
			inAService(p)
			p.client.ca = pkitest.Root(p, "root of partners", time.Now()).Intermediate(p, "authority of partners")
			p.client.id = pki.SPIFFE + "partner.test/client"
		}},
		{"Istio's protocol and an authority in a directory", xdstest.SotW, xdstest.SotW, fromIstio, fromDir, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPods(t, tc.above, tc.below)
			if tc.change != nil {
				tc.change(p)
			}
			p.identify(tc.server, tc.client)
			p.start()
			p.noHandshakeFailed()
			p.refused(strangerCluster, p.server, p.listenerStat("fail_verify_error"))
			p.refused(impostorCluster, p.client, clusterStat(impostorCluster, "fail_verify_san"))
			p.trust()
			p.neverAsked()
			p.server.neverWaited()
			p.client.neverWaited()
		})
	}
}

// inAService has Envoy take what the agents make over a stream of its own, and not
// over ADS.
func inAService(p *pods) {
	p.server.source, p.client.source = secretsFrom(p.server.service()), secretsFrom(p.client.service())
}
