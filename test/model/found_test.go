package model

import "testing"

// known has the faults of the product that the model found and must ignore to find others. Each has
// a row in TestWhatTheModelFound, which fails as long as the fault is there. Whoever corrects the
// fault removes its field and writes mended into the row.
type known struct{}

var overlooked known

// mended is for a fault that was corrected: its sequence must pass like any other.
func mended(*known) {}

// TestWhatTheModelFound plays, for each fault that the model found, a sequence that showed it. The
// failure of a row with an ignored fault is the shortest transcript. The comment of each row says
// what was corrected.
func TestWhatTheModelFound(t *testing.T) {
	for _, row := range []struct {
		name string
		seed uint64
		mend func(*known)
		draw func(seed uint64) *sequence // nil for newSequence
	}{
		// downstream/session: endpoints are given up when no cluster that the client has names
		// them, whether the cluster was removed, NACKed or changed.
		{"endpoints of what a cluster was before are given up", 1099511628950, mended, nil},
		// agent/cache: the knowledge becomes partial when sources are told that the wildcard has no
		// subscription, and not before.
		{"a wildcard that comes back at once is as known as before", 1099511627852, mended, nil},
		// upstream/session: an empty list does not end a legacy wildcard. Nothing is sent, and a
		// new stream is opened when the wildcard is subscribed to again.
		{"a SotW wildcard can be given up", 1099511628238, mended, nil},
		// upstream/session: a version may be older than the cache. A type begins with one only if
		// the cache has just what came with it.
		{"a version_info stands for what is held", 1099511633632, mended, nil},
		// upstream/session: a name that was added after the first request does not exist if the
		// second complete answer lacks it, or after 15 s. agent/cache: that a name does not exist
		// is remembered as long as a source is asked for it, also if it was never cached.
		{"a name that a complete answer leaves out is gone", 1099511629385, mended, nil},
		// upstream/session: resources that had no subscription for a while would count as members
		// of the wildcard again, and no server would remove them; on a new stream it does.
		{"what went while nobody wanted it is gone", 1099511630936, mended, nil},
		// downstream/session: a resource that a client NACKed before it ACKed one of that name is
		// considered again when another client ACKs it.
		{"a client that has nothing gets what another accepted", 1099511629962, mended, nil},
		// downstream/session: the version that a client claims is not believed for an uncertain
		// name.
		{"what a client may have is not what it claims", 4294968417, mended, nil},
		// agent/cache/uncertain: an ACK ends the uncertainty about its client only. The uncertainty
		// about a disconnected client lasts as long as the leases.
		{"each client's doubt is its own", 4295057830, mended, nil},
		// upstream/session: it is not known which requests the server had when it answered, except
		// for the first request of a stream.
		{"an answer speaks of what was asked for before it", 4294994747, mended, nil},
		// downstream/session: a pending removal ends when the cluster is cached again, even if
		// there is nothing to send.
		{"a cluster that is back does not leave", 1099511630242, mended, nil},
		// downstream/session: in SotW a delayed removal waits until the wildcard is complete.
		{"a delayed removal does not answer an unknown wildcard", 8590014887, mended, nil},
		// downstream/session: a suspect that is about to be sent alone, or is in flight alone, is
		// not sent alone again.
		{"a suspect is sent once more", 12884903056, mended, nil},
		// downstream/session: if a superseded content differs from the ACKed one, the version that
		// the client has is unknown.
		{"a client has what it was sent last before what it refused", 1099511628969, mended, nil},
		// agent/cache: an update that reports a timeout is no answer.
		{"a silent control plane has not answered a wildcard", 4295004875, mended, nil},
		// upstream/session: a server whose version is current does not report what another server
		// removed.
		{"what another source took away is asked for", 8589938874, mended, nil},
		// agent/cache, SubscriptionChange.Complete: a version_info was not followed while the
		// wildcard had no subscription, and the server that it goes back to sends nothing.
		{"a wildcard that nobody followed is asked for as a whole", 8589989250, mended, nil},
		// agent/cache/uncertain: while one client is disconnected, another one is the only one
		// connected.
		{"a client that was away is told what went", 4295058145, mended, nil},
		// downstream/session: a resource that was removed and came back before the client was sent
		// the removal is one that the client has.
		{"what came back unnoticed is accepted", 4294968101, mended, withRestarts},
		// downstream/session: the version_info of a type with partial responses claims nothing.
		{"a version does not claim what was NACKed", 4294969326, mended, withRestarts},
		// agent/cache: only a client that still subscribes makes a content stable, and only if it
		// has used it for the whole minute.
		{"a client makes nothing stable that it unsubscribed from", 4294967320, mended, withDisk},
		// agent/cache: a client that ACKs a cluster that is gone for a moment uses it from then on.
		{"what came back is used by each client that had it", 4295014871, mended, withCrashes},
		// agent/cache/fallback: what the crashed Envoys had is compared by version.
		{"what is suspected is what all lives had", 4294967587, mended, withCrashes},
		// agent/cache: a suspect that no client ACKed is not on disk.
		{"a fallback survives a restart", 4294967928, mended, withCrashes},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			kn := overlooked
			row.mend(&kn)
			draw := row.draw
			if draw == nil {
				draw = newSequence
			}
			if seq := draw(row.seed); play(t, seq, noFault, kn, false).violation != nil {
				report(t, seq, kn)
			}
		})
	}
}
