package model

import "testing"

// known are faults of the product that the model found and that it overlooks, so
// that it finds others. Each has a row in TestWhatTheModelFound, which fails as
// long as the fault is there; whoever mends one takes the field out and writes mended
// into the row.
type known struct{}

var overlooked known

// mended is for a fault that is there no more: its sequence must pass as any other.
func mended(*known) {}

// TestWhatTheModelFound plays, for each fault that the model found, a sequence that
// showed it. Of what is overlooked elsewhere the failure is the shortest transcript,
// and where the cause is and what would mend it is said with it; of what was mended
// it is said how.
func TestWhatTheModelFound(t *testing.T) {
	for _, row := range []struct {
		name string
		seed uint64
		mend func(*known)
		draw func(seed uint64) *sequence // nil for newSequence
	}{
		// downstream/session, unsubscribeEndpoints: what is expected and no cluster names that
		// the client has is dropped, whether that was removed, refused or changed.
		{"endpoints of what a cluster was before are given up", 1099511628950, mended, nil},
		// cache, Take: Complete becomes Partial when the source is told that nobody
		// wants the wildcard, and not before.
		{"a wildcard that comes back at once is as known as before", 1099511627852, mended, nil},
		// upstream/session, kept: a legacy wildcard cannot be given up by an empty
		// list; nothing is sent, and a new stream is opened when it is wanted again.
		{"a SotW wildcard can be given up", 1099511628238, mended, nil},
		// upstream/session, isCurrent and Forget: versions outlive what they stand for.
		// A type begins with one only where just what came with it is held.
		{"a version_info stands for what is held", 1099511633632, mended, nil},
		// upstream/session, late: a name asked for after the first request is missing
		// by the second complete answer, or after 15 s; cache, asked: gone is kept as
		// long as a source is asked, also for names that are not held.
		{"a name that a complete answer leaves out is gone", 1099511629385, mended, nil},
		// upstream/session, Reopen: entries that nobody wanted for a while would be taken
		// for members again, and no server speaks of them; on a new stream it does.
		{"what went while nobody wanted it is gone", 1099511630936, mended, nil},
		// downstream/session, replaceNeverAcked: what a client NACKed before it ACKed anything
		// under the name is looked at again, for item.Good.
		{"a client that has nothing gets what another accepted", 1099511629962, mended, nil},
		// downstream/session, markAll: of what is doubtful the claimed version is not
		// believed either.
		{"what a client may have is not what it claims", 4294968417, mended, nil},
		// cache, Watch.doubts: an ACK ends the doubt about that stream's client only;
		// about one that went it lasts as long as the leases.
		{"each client's doubt is its own", 4295057830, mended, nil},
		// upstream/session, toldAll and Reopen: what the server was told when it answered
		// is not known, but of a stream's first request.
		{"an answer speaks of what was asked for before it", 4294994747, mended, nil},
		// downstream/session, consider and fullSet: a removal ends as soon as something is
		// held, also where choose finds nothing to send.
		{"a cluster that is back does not leave", 1099511630242, mended, nil},
		// downstream/session, removeClusters: in SotW it waits for complete.
		{"a delayed removal does not answer an unknown wildcard", 8590014887, mended, nil},
		// downstream/session, probing: what is to be sent alone, or is under way alone, is
		// not sent alone again.
		{"a suspect is sent once more", 12884903056, mended, nil},
		// downstream/session, mayHave and reject: a superseded content that differs from
		// acked makes version unknown.
		{"a client has what it was sent last before what it refused", 1099511628969, mended, nil},
		// cache, Update.Silent: what upstream/stream.go applies of Overdue is no answer.
		{"a silent control plane has not answered a wildcard", 4295004875, mended, nil},
		// upstream/session, isCurrent: of what another server took away the one before
		// says nothing while its version is current.
		{"what another source took away is asked for", 8589938874, mended, nil},
		// cache, Want.Complete: a version_info was not followed while nobody wanted the
		// wildcard, and the server that it goes back to is silent.
		{"a wildcard that nobody followed is asked for as a whole", 8589989250, mended, nil},
		// cache, Watch.doubts: while one client is away, another is the only one.
		{"a client that was away is told what went", 4295058145, mended, nil},
		// downstream/session, choose: what a client ACKed and the cache holds anew, since it
		// went and came back before the client was told, is claimed.
		{"what came back unnoticed is accepted", 4294968101, mended, withRestarts},
		// downstream/session, commit: the version_info of a type whose responses are
		// partial claims nothing.
		{"a version does not claim what was NACKed", 4294969326, mended, withRestarts},
		// cache, onProbation and Subscribe: only a client that still subscribes makes
		// stable, and only what it has had for the whole minute.
		{"a client makes nothing stable that it unsubscribed from", 4294967320, mended, withDisk},
		// cache, crash: what the lives had is compared by version.
		{"what is suspected is what all lives had", 4294967587, mended, withCrashes},
		// cache, restoredFallback: a suspect that nobody accepted is not on disk.
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
