package push

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Mode is a mode of mutual TLS.
type Mode = security.PeerAuthentication_MutualTLS_Mode

// The modes of mutual TLS. A document may also have UNSET.
const (
	modeUnset      = security.PeerAuthentication_MutualTLS_UNSET
	modeDisable    = security.PeerAuthentication_MutualTLS_DISABLE
	modePermissive = security.PeerAuthentication_MutualTLS_PERMISSIVE
)

// authIndex has the PeerAuthentications, oldest first.
type authIndex struct {
	mesh       *security.PeerAuthentication
	namespaces map[string]*security.PeerAuthentication
	// workloads has those with a selector. In the root namespace these have no effect, as with Istio.
	workloads map[string][]*security.PeerAuthentication
	// disables says that a document has the mode DISABLE.
	disables bool
}

func indexAuth(list []*config.Config, root string) *authIndex {
	idx := &authIndex{namespaces: make(map[string]*security.PeerAuthentication), workloads: make(map[string][]*security.PeerAuthentication)}
	for _, c := range slices.SortedFunc(slices.Values(list), config.Older) {
		spec, ok := c.Spec.(*security.PeerAuthentication)
		switch {
		case !ok:
			continue
		case len(spec.GetSelector().GetMatchLabels()) > 0:
			if c.Namespace == root {
				continue
			}
			idx.workloads[c.Namespace] = append(idx.workloads[c.Namespace], spec)
		case c.Namespace == root && idx.mesh == nil:
			idx.mesh = spec
		case c.Namespace != root && idx.namespaces[c.Namespace] == nil:
			idx.namespaces[c.Namespace] = spec
		default:
			continue
		}
		idx.disables = idx.disables || spec.GetMtls().GetMode() == modeDisable
		for _, at := range spec.GetPortLevelMtls() {
			idx.disables = idx.disables || at.GetMode() == modeDisable
		}
	}
	return idx
}

// equal reports whether two indexes have documents of the same content.
func (idx *authIndex) equal(other *authIndex) bool {
	same := func(a, b *security.PeerAuthentication) bool { return a == b || proto.Equal(a, b) }
	return same(idx.mesh, other.mesh) && maps.EqualFunc(idx.namespaces, other.namespaces, same) &&
		maps.EqualFunc(idx.workloads, other.workloads, func(a, b []*security.PeerAuthentication) bool { return slices.EqualFunc(a, b, same) })
}

// mode returns the mode of a port of a workload: the oldest PeerAuthentication that selects the workload
// decides, or else that of its namespace, or else that of the mesh, or else it is PERMISSIVE.
func (idx *authIndex) mode(namespace string, port uint32, selects func(selector map[string]string) bool) Mode {
	inherit := func(mode, otherwise Mode) Mode {
		if mode == modeUnset {
			return otherwise
		}
		return mode
	}
	mode := inherit(idx.mesh.GetMtls().GetMode(), modePermissive)
	mode = inherit(idx.namespaces[namespace].GetMtls().GetMode(), mode)
	if spec := idx.workload(namespace, selects); spec != nil {
		mode = inherit(spec.GetMtls().GetMode(), mode)
		if at, ok := spec.GetPortLevelMtls()[port]; ok {
			mode = inherit(at.GetMode(), mode)
		}
	}
	return mode
}

// workload returns the oldest PeerAuthentication that selects a workload, or nil.
func (idx *authIndex) workload(namespace string, selects func(selector map[string]string) bool) *security.PeerAuthentication {
	for _, spec := range idx.workloads[namespace] {
		if selects(spec.GetSelector().GetMatchLabels()) {
			return spec
		}
	}
	return nil
}

// peerAuth is what holds of the PeerAuthentications. Where a change makes clients speak another way,
// mutual TLS or plaintext, servers and clients cannot change at the same moment: servers accept both
// first, then the clients change, and then the servers accept what the documents say. What clients do
// not notice, such as a change from PERMISSIVE to STRICT, holds at once.
//
// These steps go to a fixed target. Documents that change meanwhile are the target of the next steps: if
// they began anew with each change, somebody who changes his own documents all the time would keep the
// workloads of all others open to plaintext.
type peerAuth struct {
	// now are the documents, and target those to which the steps under way go.
	now, target *authIndex
	// announced is what clients go by, and used are all by which some may still go, announced with them.
	announced *authIndex
	used      []*authIndex
}

// everybodyAt returns the state in which everybody goes by an index.
func everybodyAt(idx *authIndex) *peerAuth {
	return &peerAuth{now: idx, target: idx, announced: idx, used: []*authIndex{idx}}
}

// next returns what follows a state, which may be nil, when the documents are those of an index.
func (a *peerAuth) next(idx *authIndex) *peerAuth {
	disables := func(of *authIndex) bool { return of.disables }
	switch {
	case a == nil:
		return everybodyAt(idx)
	case a.now.equal(idx):
		return a
	case !slices.ContainsFunc(append([]*authIndex{idx, a.target}, a.used...), disables):
		return everybodyAt(idx) // all clients speak mutual TLS, before and after
	case a.announced != a.target && a.announced.equal(idx):
		return everybodyAt(a.announced) // the change is taken back before clients were told of it
	case a.target.equal(idx):
		idx = a.target
	}
	changed := *a
	changed.now = idx
	if a.settled() {
		changed.target = idx
	}
	return &changed
}

// advance returns the state after all servers, or all clients, have what they were sent.
func (a *peerAuth) advance() *peerAuth {
	switch {
	case a.announced != a.target:
		return &peerAuth{now: a.now, target: a.target, announced: a.target, used: append(slices.Clone(a.used), a.target)}
	case len(a.used) > 1:
		// The next steps begin if the documents have changed since.
		return &peerAuth{now: a.now, target: a.now, announced: a.announced, used: []*authIndex{a.announced}}
	}
	return a
}

// settled reports whether clients go by the documents, all of them.
func (a *peerAuth) settled() bool {
	return a.announced == a.target && a.target == a.now && len(a.used) == 1
}

// sameStep reports whether two states are at the same step, whatever the documents are by now.
func (a *peerAuth) sameStep(other *peerAuth) bool {
	return a.announced == other.announced && a.target == other.target && len(a.used) == len(other.used)
}

// accepted returns the indexes by which clients go or will go next.
func (a *peerAuth) accepted() []*authIndex { return append(slices.Clone(a.used), a.target) }

// mode returns the mode in which a workload accepts connections on a port.
func (a *peerAuth) mode(namespace string, port uint32, selects func(selector map[string]string) bool) Mode {
	mode := a.now.mode(namespace, port, selects)
	for _, of := range a.accepted() {
		if of != a.now && (of.mode(namespace, port, selects) == modeDisable) != (mode == modeDisable) {
			return modePermissive
		}
	}
	return mode
}

// AuthStep is the kind that stands in the Configs of a Request for the next step of a change of
// PeerAuthentications. It is no kind of documents.
const AuthStep config.Kind = "holdfast.dev/AuthStep"

// Settled reports whether the PeerAuthentications hold as they are written. If not, a Request with
// AuthStep takes the next step.
func (s *Snapshot) Settled() bool { return s.auth.settled() }

// SameAuthStep reports whether two snapshots are at the same step of a change of PeerAuthentications.
// The documents of the two may differ: what changes meanwhile has its own steps later.
func (s *Snapshot) SameAuthStep(other *Snapshot) bool { return s.auth.sameStep(other.auth) }

// MTLS returns the mode in which a workload accepts connections on a port. selects reports whether a
// selector selects the workload.
func (s *Snapshot) MTLS(namespace string, port uint32, selects func(selector map[string]string) bool) Mode {
	return s.auth.mode(namespace, port, selects)
}

// MTLSPorts returns the ports for which the PeerAuthentication of a workload has a mode of its own, in
// order.
func (s *Snapshot) MTLSPorts(namespace string, selects func(selector map[string]string) bool) []uint32 {
	ports := make(map[uint32]bool)
	for _, idx := range append(s.auth.accepted(), s.auth.now) {
		for port := range idx.workload(namespace, selects).GetPortLevelMtls() {
			ports[port] = true
		}
	}
	return slices.Sorted(maps.Keys(ports))
}

// AcceptsMTLS reports whether clients speak mutual TLS to an endpoint that has a sidecar: unless its
// workload disables that.
func (s *Snapshot) AcceptsMTLS(ep *service.Endpoint) bool {
	if !s.auth.announced.disables {
		return true
	}
	return s.auth.announced.mode(ep.Namespace, ep.Port, func(selector map[string]string) bool {
		return proxy.Selects(selector, ep.Labels)
	}) != modeDisable
}

// DisablesMTLS reports whether any endpoint may not accept mutual TLS because of a PeerAuthentication.
func (s *Snapshot) DisablesMTLS() bool { return s.auth.announced.disables }
