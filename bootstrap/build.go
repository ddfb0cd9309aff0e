package bootstrap

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Build returns the bootstrap for cfg: its node, a static cluster over the agent's socket, LDS and CDS from there, the
// admin address, and what else is asked for. Envoy waits for LDS and CDS without a limit: what the agent does not know
// yet it does not answer, and an Envoy that gave up waiting would go live with nothing (protocol.md V7). The result is
// new at each call.
func Build(cfg Config) (*bootstrapv3.Bootstrap, error) {
	cfg = cfg.withDefaults()
	node, err := cfg.Node.Proto()
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{Node: node}
	for _, part := range []func(*bootstrapv3.Bootstrap, Config) error{
		addXDS, addAdmin, addEndpoints, addStats, addRuntime, addOverload, addLog,
	} {
		if err := part(b, cfg); err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
	}
	if err := Validate(b); err != nil {
		return nil, err
	}
	return b, nil
}

func addAdmin(b *bootstrapv3.Bootstrap, cfg Config) error {
	admin, err := adminAddress(cfg.Admin)
	if err != nil {
		return fmt.Errorf("admin address %w", err)
	}
	if admin.GetPipe().GetPath() == cfg.XDS.Socket {
		return fmt.Errorf("admin address and xDS socket are both %q", cfg.XDS.Socket)
	}
	b.Admin = &bootstrapv3.Admin{Address: admin}
	return nil
}

// message is a message of Envoy's API, which knows its rules.
type message interface {
	proto.Message
	ValidateAll() error
}

// pack puts m into an Any, the same bytes for the same m. Inside an Any nothing is validated, so that is done here.
func pack(m message) (*anypb.Any, error) {
	if err := Validate(m); err != nil {
		return nil, err
	}
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("%s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return packed, nil
}
