package bootstrap

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Build returns the bootstrap for cfg: the node, a static cluster for the agent's socket, LDS and CDS from there, the admin
// address, and the optional parts. Envoy waits for LDS and CDS without a timeout, because the agent does not answer what it
// does not know yet, and an Envoy that stopped waiting would become ready without configuration (protocol.md V7). The
// result is new for each call.
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

// message is a message of Envoy's API with its generated validation.
type message interface {
	proto.Message
	ValidateAll() error
}

// pack packs m into an Any with deterministic bytes. It validates m, because validation does not look into an Any.
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
