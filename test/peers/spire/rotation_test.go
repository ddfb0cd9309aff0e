package spire

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// requestInterval is the time between two requests of the load, each of which is a handshake.
const requestInterval = 20 * time.Millisecond

// SVIDs that live for seconds are exchanged again and again on both sides, and the server's authority for another, while
// every request is a new handshake: none fails.
func TestSVIDsAndAuthoritiesRotateUnderLoad(t *testing.T) {
	t.Parallel()
	const certificates = 5
	// SPIRE looks every 10 s whether half of an authority's time is over, to make the next, and five sixths, to use it.
	m := newMesh(rig.New(t), time.Minute)
	for _, id := range []string{serverID, clientID} {
		m.register(id, 15*time.Second)
	}
	p := startPods(m)
	load := testbed.StartTraffic(p.url, requestInterval)
	clients, servers, authorities := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	begun := time.Now()
	p.callUntil(2*time.Minute, func(h handshake) error {
		clients[h.client.SerialNumber.String()] = true
		servers[h.server.SerialNumber.String()] = true
		authorities[fmt.Sprintf("client %x", h.client.AuthorityKeyId)] = true
		authorities[fmt.Sprintf("server %x", h.server.AuthorityKeyId)] = true
		if len(clients) < certificates || len(servers) < certificates || len(authorities) < 4 {
			return fmt.Errorf("%d certificates of the client, %d of the server, and %d authorities of either were seen: want %d, %d and 4",
				len(clients), len(servers), len(authorities), certificates, certificates)
		}
		return nil
	})
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	p.noHandshakeFailed()
	t.Logf("%d and %d certificates of two authorities in %s; %d of %d requests failed", len(clients), len(servers), time.Since(begun).Round(time.Second), load.Failed, load.Sent)
}
