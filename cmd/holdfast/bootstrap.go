package main

import (
	"context"
	"errors"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// bootstrapMode lets everybody read the bootstrap: it holds no secret, and Envoy
// often runs as another user.
const bootstrapMode = 0o644

const bootstrapLong = `Write the bootstrap file with which Envoy takes its configuration from the agent:
who Envoy is, the agent's socket, and Envoy's own admin address. The same flags
give the same bytes. The file appears whole or not at all.`

const bootstrapExample = `
# for an Envoy of the service web
holdfast bootstrap --out /etc/envoy/envoy.yaml --node-id web-1 --node-cluster web

# look at it first
holdfast bootstrap --out - --node-id web-1 --node-cluster web

# metadata: text, and a JSON value
holdfast bootstrap --out envoy.json --node-id web-1 --node-cluster web \
    --node-metadata team=shop --node-metadata 'labels:={"app":"web"}'`

func newBootstrap() *command {
	c := newCommand("bootstrap", "write Envoy's bootstrap file and exit", bootstrapLong, bootstrapExample)
	var (
		out, grpcOut  string
		socket, admin string
		node          nodeFlags
		protocol      = oneOf("delta", "sotw")
	)
	flags := c.section("Output (at least one)")
	flags.StringVar(&out, "out", "", "`FILE` to write for Envoy: YAML if it ends in .yaml or .yml, JSON if in .json; - writes YAML to standard output")
	flags.StringVar(&grpcOut, "grpc-out", "", "`FILE` to write for proxyless gRPC, in JSON: what GRPC_XDS_BOOTSTRAP names")
	node.add(c.section("Who Envoy is (id and cluster are required)"))
	flags = c.section("How Envoy connects")
	flags.StringVar(&socket, "socket", bootstrap.DefaultSocket, "`PATH` of the Unix socket of the agent, absolute")
	flags.Var(protocol, "xds-protocol", "the form of xDS that Envoy speaks to the agent; the agent turns either into what the control plane speaks")
	flags.StringVar(&admin, "envoy-admin", bootstrap.DefaultAdmin, "`ADDR` of Envoy's own admin interface: host:port on loopback, or unix:PATH")
	c.run = func(_ context.Context, warnings []string) error {
		warn(c, warnings)
		if out == "" && grpcOut == "" {
			return errors.New("--out is missing: name the file that Envoy will read, such as --out envoy.yaml, or - for standard output")
		}
		cfg := bootstrap.Config{Node: node.node(), Socket: socket, XDSMode: bootstrap.Mode(protocol.value), Admin: admin}
		if grpcOut != "" {
			text, err := bootstrap.GRPC(cfg)
			if err != nil {
				return err
			}
			if err := bootstrap.Write(grpcOut, text, bootstrapMode); err != nil {
				return failed(err)
			}
		}
		if out == "" {
			return nil
		}
		return writeEnvoyBootstrap(c, cfg, out)
	}
	return c
}

// writeEnvoyBootstrap writes Envoy's bootstrap to a file, or for "-" to standard
// output.
func writeEnvoyBootstrap(c *command, cfg bootstrap.Config, out string) error {
	format := bootstrap.YAML
	if out != "-" {
		var err error
		if format, err = bootstrap.FormatOf(out); err != nil {
			return err
		}
	}
	made, err := bootstrap.Build(cfg)
	if err != nil {
		return err
	}
	text, err := bootstrap.Encode(made, format)
	if err != nil {
		return failed(err)
	}
	if out == "-" {
		_, err := c.OutOrStdout().Write(text)
		return failed(err)
	}
	return failed(bootstrap.Write(out, text, bootstrapMode))
}
