package agent

import (
	"cmp"
	"context"
	"errors"
	"io"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// registerCSDS adds the client status discovery service: the resources of each group, and the clients'
// ACKs and NACKs (protocol.md 8.6). It has names, versions, statuses and the contents without a secret in them, which
// a request may exclude; `holdfast dump` has all of them, redacted.
func (a *Agent) registerCSDS(r grpc.ServiceRegistrar) {
	statusv3.RegisterClientStatusDiscoveryServiceServer(r, csds{agent: a})
}

type csds struct {
	statusv3.UnimplementedClientStatusDiscoveryServiceServer
	agent *Agent
}

func (c csds) FetchClientStatus(_ context.Context, req *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	if len(req.GetNodeMatchers()) > 0 {
		return nil, status.Error(codes.InvalidArgument, "node matchers are not supported: every group is reported")
	}
	resp := &statusv3.ClientStatusResponse{}
	for _, m := range c.agent.groups.Members() {
		resp.Config = append(resp.Config, clientConfig(m, !req.GetExcludeResourceContents()))
	}
	return resp, nil
}

func (c csds) StreamClientStatus(stream statusv3.ClientStatusDiscoveryService_StreamClientStatusServer) error {
	for {
		req, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		resp, err := c.FetchClientStatus(stream.Context(), req)
		if err != nil {
			return err
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// clientConfig returns the state of a group, with contents if they are wanted.
func clientConfig(m *group.Member, contents bool) *statusv3.ClientConfig {
	conf := &statusv3.ClientConfig{Node: m.Node(), ClientScope: m.Key().Scope()}
	frozen, _ := m.Cache().Frozen()
	var finder redact.Finder
	content := func(r *xds.Resource) *anypb.Any {
		if !contents || r == nil || r.Body == nil || r.Type == xds.SecretType || finder.Sensitive(r.Body) != "" {
			return nil
		}
		return r.Body
	}
	for _, t := range m.Cache().Status() {
		for _, r := range m.Cache().Resources(t.Type) {
			if r.Unused {
				continue
			}
			row := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: t.Type, Name: r.Name, ClientStatus: clientStatus(r)}
			if r.Current != nil {
				row.Name = r.Current.Name
			}
			switch updated := cmp.Or(r.Changed, t.Updated); {
			case updated.IsZero():
			case r.Current != nil:
				row.LastUpdated = timestamppb.New(updated)
			}
			// The content that clients have, and the one that they NACKed.
			accepted, failed := r.Current, (*xds.Resource)(nil)
			switch {
			case r.Frozen:
				row.ClientStatus = adminv3.ClientResourceStatus_NACKED
				accepted, failed = r.Served, r.Current
				row.ErrorState = &adminv3.UpdateFailureState{Details: frozen.Error()}
			case r.FellBack:
				row.ClientStatus = adminv3.ClientResourceStatus_NACKED
				accepted, failed = r.Served, r.Current
				row.ErrorState = &adminv3.UpdateFailureState{Details: "held back, because Envoy crashed with it"}
			case r.Current == nil:
				row.ErrorState = &adminv3.UpdateFailureState{Details: r.Err.Error()}
			case row.ClientStatus == adminv3.ClientResourceStatus_NACKED:
				accepted, failed = r.Acked, r.Current
				row.ErrorState = &adminv3.UpdateFailureState{Details: r.Reason}
			}
			if accepted != nil {
				row.VersionInfo = accepted.Version
				row.XdsConfig = content(accepted)
			}
			if failed != nil {
				row.ErrorState.VersionInfo = failed.Version
				row.ErrorState.FailedConfiguration = content(failed)
				row.ErrorState.LastUpdateAttempt = row.LastUpdated
			}
			conf.GenericXdsConfigs = append(conf.GenericXdsConfigs, row)
		}
	}
	return conf
}

// clientStatus returns the status of a resource, or of a name that has an error but no resource (gRFC
// A88).
func clientStatus(r cache.ResourceStatus) adminv3.ClientResourceStatus {
	switch {
	case r.Current != nil && r.Status == xds.Pending:
		return adminv3.ClientResourceStatus_REQUESTED
	case r.Current != nil && r.Status == xds.Acked:
		return adminv3.ClientResourceStatus_ACKED
	case r.Current != nil:
		return adminv3.ClientResourceStatus_NACKED
	case errors.Is(r.Err, xds.ErrNotFound):
		return adminv3.ClientResourceStatus_DOES_NOT_EXIST
	case errors.Is(r.Err, xds.ErrNoAnswer):
		return adminv3.ClientResourceStatus_TIMEOUT
	}
	return adminv3.ClientResourceStatus_RECEIVED_ERROR
}

// Forward opens a stream of a service that the agent does not serve itself, to an upstream of the first
// group that reaches one, because a pass-through stream does not name its node, and all groups have the
// same upstreams. There may be no group yet: Envoy opens the stream of its health checks before ADS
// (protocol.md 8.5).
func (a *Agent) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	err := status.Errorf(codes.Unavailable, "no upstream for %s", method)
	members := a.groups.Members()
	if len(members) == 0 {
		sources, err := a.sources(nil)
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		return (&upstream.Failover{Sources: sources}).Forward(ctx, method)
	}
	for _, m := range members {
		stream, failed := m.Forward(ctx, method)
		if failed == nil {
			return stream, nil
		}
		err = failed
	}
	return nil, err
}
