package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/holdfast-xds/holdfast/agent/controlplane"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
)

// defaultListen is a loopback address, because TLS is off by default.
const defaultListen = "127.0.0.1:18000"

const controlPlaneLong = `Serve xDS, in its variants state of the world (SotW) and Delta, from a directory of resources
in YAML, JSON or protobuf: a small control plane for trying holdfast, for tests, and for
fleets that need no more.

Files are read again when they change. The last valid content of a file that does not parse
stays in use, and clients are answered from when every file was valid once. From a directory
without files, such as a volume that is not mounted, nobody is answered and nothing is removed; a
file with "resources: []" is one that has none on purpose. All nodes get the same resources. If
the Envoy of a node NACKs a resource, that node alone keeps the version that it ACKed until the
file changes, also if Envoy reconnects within an hour, but not if the control plane restarts.`

const controlPlaneExample = `
# for this machine only, without TLS
holdfast controlplane --dir ./examples

# for other machines, with TLS and client certificates
holdfast controlplane --dir /etc/xds --listen :18000 \
    --tls-cert cert.pem --tls-key key.pem --tls-client-ca ca.pem`

// controlPlaneFlags are the flags of `holdfast controlplane`.
type controlPlaneFlags struct {
	cfg controlplane.Config
	log logFlags
}

func newControlPlane(p process) *command {
	c := newCommand("controlplane", "serve xDS from a directory of resource files", controlPlaneLong, controlPlaneExample)
	f := &controlPlaneFlags{}
	f.add(c)
	c.run = func(ctx context.Context, warnings []string) error {
		return f.log.serve(p, warnings, func(queue *logqueue.Queue, log *slog.Logger) error {
			harden(log)
			f.cfg.Version, f.cfg.Log, f.cfg.Output = version, log, queue
			switch {
			case f.cfg.Dir == "":
				return errors.New("--dir is missing: name the directory of the resources, such as --dir ./examples")
			case (f.cfg.TLSCert == "") != (f.cfg.TLSKey == ""):
				return errors.New("--tls-cert and --tls-key go together: give both or none")
			}
			cp, err := controlplane.New(f.cfg)
			if err != nil {
				return err
			}
			warnExposedControlPlane(log, f.cfg)
			return cli.Failed(cp.Run(ctx))
		})
	}
	return c
}

func (f *controlPlaneFlags) add(c *command) {
	cfg := &f.cfg
	flags := c.section("Resources, and where to serve them")
	flags.StringVar(&cfg.Dir, "dir", "", "`DIR` of the resources. Required")
	flags.StringVar(&cfg.Listen, "listen", defaultListen, "`ADDR` where xDS is served: host:port or unix:PATH")
	flags.Var(numberOf(&cfg.MaxNodes, controlplane.DefaultMaxNodes, positive), "max-nodes", "maximum `NUMBER` of nodes (mostly one per node id). The ACKs and NACKs of a node are remembered until an hour after its last client disconnected. Beyond the limit, the node without clients that was used least recently is removed")
	flags.Var(numberOf(&cfg.StartWithProblemsAfter, 0, notNegative), "start-with-problems-after", "after this `DURATION`, a start no longer waits for files of --dir that are not valid and never were: they are left out, and what they did is taken from clients. 0: it waits until they are repaired, and nobody is answered meanwhile")
	flags = c.section("Security (without these flags, TLS is not used)")
	flags.StringVar(&cfg.TLSCert, "tls-cert", "", "PEM `FILE` of the certificate and its chain; with --tls-key")
	flags.StringVar(&cfg.TLSKey, "tls-key", "", "PEM `FILE` of the private key of --tls-cert")
	flags.StringVar(&cfg.TLSClientCA, "tls-client-ca", "", "PEM `FILE` of the CAs to trust for client certificates; empty: clients need no certificate")
	flags = c.section("Health, metrics and logs")
	flags.StringVar(&cfg.Admin, "admin", "", "`ADDR` of the admin interface (health, metrics, status, dump): unix:PATH or host:port; empty: none")
	flags.StringVar(&cfg.Health, "health", "", "`ADDR`, host:port, for /livez, /readyz, /startupz and /metrics only; empty: none")
	f.log.add(flags)
}
