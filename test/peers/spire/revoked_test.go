package spire

import (
	"net/http"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// An entry that is deleted takes away the next SVIDs, not those that were issued: holdfast says that there is none for its
// identity, and serves the last one, to its end and beyond, until there is an entry again. When no entry is left for the
// process at all, it says that too.
func TestADeletedEntryIsReportedAndTheLastSVIDStays(t *testing.T) {
	t.Parallel()
	m := newMesh(rig.New(t), time.Hour)
	// Longer than that of the client, so that it is the client's that is missing.
	server := m.register(serverID, 10*time.Minute)
	client := m.register(clientID, 20*time.Second)
	p := startPods(m)

	m.unregister(client)
	last := p.says(p.client, "none of the 1 certificates is for "+clientID, "").Identities[0]
	p.says(p.server, "", "")
	for time.Until(last.NotAfter) > time.Second {
		h, err := p.call()
		m.Check(err)
		if serial := h.client.SerialNumber.Text(16); serial != last.Serial {
			t.Fatalf("the client shows certificate %s, want the last one, %s", serial, last.Serial)
		}
		time.Sleep(100 * time.Millisecond)
	}
	// Whoever meets a certificate that has ended refuses it.
	m.Eventually(func() error {
		status, _, err := testbed.Get(p.url)
		if err == nil && status != http.StatusServiceUnavailable {
			err = errStatus(status)
		}
		return err
	})
	if now := p.status(p.client).Identities[0]; now.Serial != last.Serial {
		t.Errorf("after its end the certificate is %q, want the last one, %s", now.Serial, last.Serial)
	}

	client = m.register(clientID, 20*time.Second)
	h := p.trust()
	if serial := h.client.SerialNumber.Text(16); serial == last.Serial {
		t.Errorf("the client shows the certificate %s, which has ended", serial)
	}
	p.says(p.client, "", "")

	m.unregister(client)
	m.unregister(server)
	const none = "no identity is registered for this process"
	p.says(p.client, "", none)
	p.says(p.server, "", none)
	before := p.trust()
	m.register(serverID, time.Minute)
	m.register(clientID, time.Minute)
	p.renewed(before)
	p.says(p.client, "", "")
	p.says(p.server, "", "")
}

// errStatus is an HTTP status that was not wanted.
type errStatus int

func (s errStatus) Error() string { return "answered " + http.StatusText(int(s)) }
