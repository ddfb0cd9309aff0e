package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-xds/holdfast/agent/controlplane"
)

// defaultListen keeps an unprotected control plane on its machine.
const defaultListen = "127.0.0.1:18000"

const controlPlaneLong = `Serve xDS (SotW and Delta) from a directory of resources, in YAML, JSON or protobuf:
a small control plane for a try, for tests, and for a fleet that needs no more.
Files are read again when they change; one that does not parse keeps its last good
content. Every node is given the same. What the Envoy of one node refuses is kept from
that node alone, which goes on with what it accepted until the files say something else,
also over a restart of that Envoy (for an hour), not over one of the control plane.`

const controlPlaneExample = `
# on this machine, without TLS
holdfast controlplane --dir ./examples

# for others, with TLS, for clients with a certificate
holdfast controlplane --dir /etc/xds --listen :18000 --tls-cert cert.pem --tls-key key.pem --tls-client-ca ca.pem`

// controlPlaneFlags are the flags of `holdfast controlplane`.
type controlPlaneFlags struct {
	dir, listen            string
	tlsCert, tlsKey, tlsCA string
	maxNodes               int
	admin, health          string
	log                    logFlags
}

func newControlPlane(p process) *command {
	c := newCommand("controlplane", "serve xDS from a directory of resources", controlPlaneLong, controlPlaneExample)
	f := &controlPlaneFlags{log: newLogFlags()}
	f.add(c)
	c.run = func(ctx context.Context, warnings []string) error {
		log := f.log.logger(p.stderr, warnings)
		harden(log)
		cfg, err := f.config(log)
		if err != nil {
			return err
		}
		cp, err := controlplane.New(cfg)
		if err != nil {
			return err
		}
		f.warnExposed(log)
		return failed(cp.Run(ctx))
	}
	return c
}

func (f *controlPlaneFlags) add(c *command) {
	flags := c.section("What is served, and where")
	flags.StringVar(&f.dir, "dir", "", "`DIR` of the resources. Required")
	flags.StringVar(&f.listen, "listen", defaultListen, "`ADDR` where xDS is served: host:port or unix:PATH")
	flags.IntVar(&f.maxNodes, "max-nodes", controlplane.DefaultMaxNodes, "`NUMBER` of nodes (ids, mostly) that are served at once. What each accepted and refused is remembered, for an hour after its last client has gone; of those without a client the one that was used least recently gives way")
	flags = c.section("Security (without these flags everything is sent in the clear)")
	flags.StringVar(&f.tlsCert, "tls-cert", "", "PEM `FILE` of the certificate and its chain; with --tls-key")
	flags.StringVar(&f.tlsKey, "tls-key", "", "PEM `FILE` of the key of --tls-cert")
	flags.StringVar(&f.tlsCA, "tls-client-ca", "", "PEM `FILE` of the authorities that a client's certificate must lead to; empty: none is asked for")
	flags = c.section("Watching it")
	flags.StringVar(&f.admin, "admin", "", "`ADDR` for health, metrics, status and dump: unix:PATH or host:port; empty: none")
	flags.StringVar(&f.health, "health", "", "`ADDR`, host:port, for /livez, /readyz, /startupz and /metrics only; empty: none")
	f.log.add(flags)
}

// config wires the flags to the control plane.
func (f *controlPlaneFlags) config(log *slog.Logger) (controlplane.Config, error) {
	switch {
	case f.dir == "":
		return controlplane.Config{}, errors.New("--dir is missing: name the directory of the resources, such as --dir ./examples")
	case f.maxNodes < 1:
		return controlplane.Config{}, fmt.Errorf("--max-nodes %d: want a positive number", f.maxNodes)
	case (f.tlsCert == "") != (f.tlsKey == ""):
		return controlplane.Config{}, errors.New("--tls-cert and --tls-key go together: give both or none")
	}
	return controlplane.Config{
		Version:     version,
		Dir:         f.dir,
		Listen:      f.listen,
		TLSCert:     f.tlsCert,
		TLSKey:      f.tlsKey,
		TLSClientCA: f.tlsCA,
		MaxNodes:    f.maxNodes,
		Admin:       f.admin,
		Health:      f.health,
		Log:         log,
	}, nil
}
