package spire

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// away is how long something is killed: much less than what is left of an SVID.
const away = 3 * time.Second

// The SPIRE agent is killed and started again, then server and agent, and meanwhile holdfast: no handshake fails, holdfast
// says what is wrong, and new SVIDs are in use when SPIRE is back.
func TestNoHandshakeFailsWhileSPIREIsAway(t *testing.T) {
	t.Parallel()
	m := newMesh(rig.New(t), time.Hour)
	for _, id := range []string{serverID, clientID} {
		m.register(id, 2*time.Minute)
	}
	p := startPods(m)
	const gone = "is the SPIRE agent running"
	load := testbed.StartTraffic(p.url, requestInterval)

	before := p.trust()
	m.agent.Kill()
	p.says(p.client, "", gone)
	p.says(p.server, "", gone)
	time.Sleep(away)
	m.startAgent()
	p.renewed(before) // an agent that starts gets new SVIDs for everybody
	p.says(p.client, "", "")
	p.says(p.server, "", "")

	before = p.trust()
	m.server.Kill()
	m.agent.Kill()
	p.says(p.client, "", gone)
	p.client.agent.Kill()
	p.client.agent.Restart()
	p.says(p.client, "", gone)
	time.Sleep(away)
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	p.noHandshakeFailed()

	// A new Envoy has no certificate but what holdfast has from its directory.
	p.client.envoy.Kill()
	p.client.envoy = p.client.agent.Envoy("envoy-client", "delta", p.client.edit)
	if h := p.trust(); !h.client.Equal(before.client) {
		t.Errorf("the client shows certificate %s, want that of before, %s", h.client.SerialNumber, before.client.SerialNumber)
	}

	load = testbed.StartTraffic(p.url, requestInterval)
	m.startServer()
	m.startAgent()
	p.renewed(before)
	p.says(p.client, "", "")
	p.says(p.server, "", "")
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	p.noHandshakeFailed()
}
