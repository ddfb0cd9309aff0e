package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/authn"
	"github.com/holdfast-xds/holdfast/mesh/ca"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/mesh/push/debounce"
	"github.com/holdfast-xds/holdfast/mesh/push/queue"
)

// defaultAdmin is where the status is, and where the other commands ask for it.
const defaultAdmin = "127.0.0.1:15014"

// gcPercent is Go's GOGC unless the environment sets it. With Go's default, 100, a process that serves
// 100 sidecars takes half as much memory again, and a tenth less CPU time to connect them.
const gcPercent = 40

const (
	minConnectionAge = 10 * time.Second
	maxDrainTime     = 10 * time.Minute
)

const serveLong = `Read the documents of a directory or of etcd, and serve xDS to proxies.

Changes are served as they come. A document that is not valid keeps its last valid content and harms no
other; the log and the status name it with file, line and field. Proxies are answered from when
everything was read once: each document of a directory is valid, or has a last valid content in
--state-dir, and an etcd has a document. A directory that is away or empty keeps what it had; one with a file
that is a comment alone has no documents on purpose. Any number of servers may use one etcd: they share nothing else. While etcd is
away nothing changes for proxies, and with --state-dir a server that starts meanwhile serves what it had.`

// The values of --document-age.
const (
	ageOfStore    = "store"
	ageOfDocument = "creation-timestamp"
)

// serveFlags are the flags of serve that are not those of mesh.Config.
type serveFlags struct {
	cfg     mesh.Config
	issuers []string
	keys    []string
	domains []string
	age     string
	tokenCA string
	log     cli.LogFlags
}

func newServe(stderr io.Writer) *cobra.Command {
	f := &serveFlags{}
	c := &cobra.Command{
		Use: "serve {--config DIR | --etcd URL}", Short: "serve xDS from a directory of documents, or from etcd", Long: serveLong, Args: cobra.NoArgs,
		Example: "holdfast-mesh serve --config ./mesh\nholdfast-mesh serve --etcd https://etcd-0:2379,https://etcd-1:2379 --etcd-ca ca.pem --state-dir /var/lib/holdfast-mesh",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.Service("holdfast-mesh", stderr, nil, func(queue *logqueue.Queue) error { return f.serve(cmd.Context(), queue) })
		},
	}
	flags, cfg := c.Flags(), &f.cfg
	flags.SortFlags = false
	flags.StringVar(&cfg.Dir, "config", "", "`DIR` of the documents (*.yaml, *.yml, *.json; subdirectories too). This or --etcd is required")
	etcdFlags(flags, &cfg.Etcd)
	flags.StringVar(&cfg.StateDir, "state-dir", "", "`DIR` in which documents, in their last valid content, workloads that have registered and the keys of issuers of tokens are kept over a restart; empty: they are forgotten, and the next start needs a valid directory, or the store, the issuers and the proxies again")
	flags.DurationVar(&cfg.StartWithProblemsAfter, "start-with-problems-after", 0, "`TIME` after which a start no longer waits for documents of --config that are not valid and have no last valid content in --state-dir: they are left out, and what they did is taken from proxies; 0: never")
	flags.BoolVar(&cfg.AllowEmpty, "allow-empty", false, "an --etcd without any document has none on purpose: without this flag nobody is served until it has one, and it keeps what it had")
	flags.Var(cli.Choice(&f.age, ageOfStore, ageOfDocument), "document-age", "what decides who has what two documents of --etcd ask for: store, which of them etcd has had for longer; or creation-timestamp, what their authors write into them")
	flags.IntVar(&cfg.MaxNamespaceDocuments, "max-namespace-documents", etcd.DefaultMaxDocuments, "`NUMBER` of documents of one namespace in --etcd that are used, the oldest ones; 0: any number")
	flags.IntVar(&cfg.MaxNamespaceBytes, "max-namespace-bytes", etcd.DefaultMaxBytes, "size in `BYTES` of the documents of one namespace in --etcd that are used, the oldest ones; 0: any size")
	cli.Group(flags, "The documents")
	flags.StringVar(&cfg.Domain, "domain", config.DefaultDomain, "DNS `DOMAIN` of Kubernetes Services")
	flags.StringVar(&cfg.Cluster, "cluster", "", "`ID` of the cluster whose Services the documents describe")
	cli.Group(flags, "The mesh")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:15010", "`ADDR`, host:port, of xDS in plaintext; empty: none")
	flags.StringVar(&cfg.TLSListen, "tls-listen", "", "`ADDR`, host:port, of xDS with TLS, such as :15012; empty: none")
	flags.StringVar(&cfg.TLSCert, "tls-cert", "", "PEM `FILE` of the certificate and its chain; with --tls-key")
	flags.StringVar(&cfg.TLSKey, "tls-key", "", "PEM `FILE` of the private key of --tls-cert")
	flags.StringSliceVar(&cfg.TLSNames, "tls-name", nil, "`NAME` of this server, a DNS name or an address, in the certificate that --ca signs for it; more than one: with commas (default this machine's)")
	flags.StringVar(&cfg.TLSClientCA, "tls-client-ca", "", "PEM `FILE` of the CAs to trust for client certificates; a SPIFFE ID must be the node's; empty: clients need none")
	flags.BoolVar(&cfg.AllowUnauthenticated, "allow-unauthenticated", false, "addresses that others than this machine reach are served although nobody there has to prove who he is")
	cli.Group(flags, "Where proxies connect")
	flags.StringArrayVar(&f.issuers, "token-issuer", nil, "`URL` of an issuer of tokens (JWT) by which clients of --tls-listen authenticate: service accounts of Kubernetes, or SPIFFE IDs. May be repeated")
	flags.StringArrayVar(&f.keys, "token-keys", nil, "`URL=FILE` with the public keys of a --token-issuer, as JWKS or PEM; without it they are asked for at its URL. May be repeated")
	flags.StringArrayVar(&f.domains, "token-trust-domain", nil, "`URL=DOMAIN`, the only trust domain for which a --token-issuer speaks: the mesh's or one of its aliases; without it service accounts are of the mesh's. May be repeated")
	flags.StringVar(&f.tokenCA, "token-ca", "", "PEM `FILE` of the CAs to trust at the URL of a --token-issuer; empty: those of the system")
	flags.StringArrayVar(&cfg.Authn.Audiences, "token-audience", []string{authn.DefaultAudience}, "`AUDIENCE` of which tokens must be. May be repeated")
	cli.Group(flags, "Tokens by which clients authenticate")
	flags.StringVar(&cfg.CA, "ca", "", "`CA` that signs certificates of the mesh for clients of --tls-listen: dir:DIR with ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem, as in Istio's Secret cacerts; dev or dev:DIR, made for development; empty: none")
	flags.DurationVar(&cfg.MaxLifetime, "ca-max-lifetime", ca.DefaultMaxLifetime, "maximum `TIME` for which a certificate is valid; without a wish of the client it is 24h at most")
	cli.Group(flags, "Certificates of the mesh")
	flags.Var(cli.Choice(&cfg.JWKSFetch, mesh.ControlPlane, mesh.Proxy), "jwks-fetch", "who gets the keys at the jwksUri of a RequestAuthentication: control-plane; or proxy: Envoy itself, if the URI is of a service of the mesh")
	flags.StringVar(&cfg.JWKSCA, "jwks-ca", "", "PEM `FILE` of CAs to trust, besides those of the system, when the control plane gets such keys")
	flags.BoolVar(&cfg.JWKSLoopback, "jwks-allow-loopback", false, "the control plane gets such keys also at loopback addresses of its own machine, which documents can lead it to; for development")
	cli.Group(flags, "Keys of RequestAuthentications")
	flags.IntVar(&cfg.MaxProxies, "max-proxies", 0, "`NUMBER` of proxies that may be connected; a further one is refused, and told to try another replica; 0: any number")
	flags.IntVar(&cfg.MaxProxiesPerIdentity, "max-proxies-per-identity", 0, "`NUMBER` of --max-proxies that may be of one identity, or from one host if they prove none (loopback excepted); 0: half of them")
	flags.DurationVar(&cfg.MaxConnectionAge, "max-connection-age", 30*time.Minute, "`TIME` after which a proxy is told to connect again, so that proxies spread over replicas and prove again who they are; 10 % more or less at random, 10s at least; 0: never")
	flags.DurationVar(&cfg.MaxConnectionIdle, "max-connection-idle", time.Minute, "`TIME` after which a connection without a stream, on which nobody has authenticated, is closed; 0: never")
	flags.DurationVar(&cfg.DrainTime, "drain-time", 5*time.Second, "`TIME` over which proxies are sent away at SIGTERM at most, 10ms for each; 0: all at once")
	flags.IntVar(&cfg.Registration.PerAccount, "max-workloads-per-account", 1000, "`NUMBER` of workloads of one service account that may have registered, at all replicas; 0: any number")
	flags.BoolVar(&cfg.Registration.AnyAddress, "register-any-address", false, "let workloads register with loopback, link-local, multicast and unspecified addresses, as on one machine")
	cli.Group(flags, "Connections and workloads")
	flags.DurationVar(&cfg.Debounce.After, "debounce-after", debounce.DefaultAfter, "a change is pushed when none has come for this `TIME`")
	flags.DurationVar(&cfg.Debounce.Max, "debounce-max", debounce.DefaultMax, "`TIME` that a change waits for others at most")
	flags.BoolVar(&cfg.Debounce.Endpoints, "debounce-endpoints", true, "changes of endpoints wait, too; false: they are pushed at once")
	flags.IntVar(&cfg.Throttle, "push-throttle", queue.DefaultThrottle, "`NUMBER` of proxies that are served at once")
	cli.Group(flags, "Pushes")
	flags.StringVar(&cfg.Admin, "admin", defaultAdmin, "`ADDR` of status, metrics and what the other commands ask for: unix:PATH, or host:port, which needs --admin-client-ca unless it is a loopback address; empty: none")
	flags.StringVar(&cfg.AdminClientCA, "admin-client-ca", "", "PEM `FILE` of the CAs of certificates with which --admin can be used; it speaks TLS then, with the certificate of --tls-listen")
	flags.StringArrayVar(&cfg.AdminAllow, "admin-allow", nil, "`NAME`, a SPIFFE ID or DNS name, in the certificates of --admin-client-ca that may use --admin; none: all may. May be repeated")
	flags.StringVar(&cfg.Health, "health", "", "`ADDR`, host:port, of probes and metrics alone: /ready and /metrics; empty: they are at --admin only")
	flags.Int64Var(&cfg.MaxDiff, "max-diff-bytes", mesh.DefaultMaxDiff, "size in `BYTES` of a configuration that `holdfast-mesh diff` may compare")
	flags.BoolVar(&cfg.Pprof, "pprof", false, "serve profiles of the process (CPU, memory, goroutines) at --admin, below /debug/pprof/")
	cli.Group(flags, "Status, metrics and probes")
	f.log.Add(flags)
	cli.Group(flags, "Log")
	return c
}

// serve runs the control plane until ctx ends.
func (f *serveFlags) serve(ctx context.Context, queue *logqueue.Queue) error {
	log := f.log.Logger(queue.From(cli.Own))
	cli.ServiceLog(queue, log)
	f.cfg.Version, f.cfg.Log, f.cfg.Etcd.Log, f.cfg.Output = version, log, log, queue
	if err := f.check(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	e, err := mesh.New(f.cfg)
	if err != nil {
		return err
	}
	go memory.GiveBack(ctx, log)
	return cli.Failed(e.Run(ctx))
}

// byIssuer reads the values of a flag that say something of issuers. form is what is wanted.
func byIssuer(flag, form string, pairs []string) (map[string]string, error) {
	values := make(map[string]string)
	for _, pair := range pairs {
		at := strings.LastIndexByte(pair, '=')
		if at < 1 || at == len(pair)-1 {
			return nil, fmt.Errorf("%s %q: want %s", flag, pair, form)
		}
		if values[pair[:at]] != "" {
			return nil, fmt.Errorf("%s %s: given twice", flag, pair[:at])
		}
		values[pair[:at]] = pair[at+1:]
	}
	return values, nil
}

// readIssuers joins the flags of issuers.
func (f *serveFlags) readIssuers() error {
	files, err := byIssuer("--token-keys", "URL=FILE", f.keys)
	if err != nil {
		return err
	}
	domains, err := byIssuer("--token-trust-domain", "URL=DOMAIN", f.domains)
	if err != nil {
		return err
	}
	asked := false
	for _, url := range f.issuers {
		i := authn.Issuer{URL: url, Keys: files[url], TrustDomain: domains[url]}
		if i.Keys == "" {
			i.CA, asked = f.tokenCA, true
		}
		f.cfg.Authn.Issuers = append(f.cfg.Authn.Issuers, i)
		delete(files, url)
		delete(domains, url)
	}
	switch {
	case f.tokenCA != "" && !asked:
		return errors.New("--token-ca: there is no --token-issuer that is asked for its keys")
	case slices.Contains(f.cfg.Authn.Audiences, ""):
		return errors.New("--token-audience: it is empty")
	}
	for url := range files {
		return fmt.Errorf("--token-keys %s: there is no --token-issuer of this URL", url)
	}
	for url := range domains {
		return fmt.Errorf("--token-trust-domain %s: there is no --token-issuer of this URL", url)
	}
	return nil
}

// check returns what is wrong with the flags and would not be noticed otherwise.
func (f *serveFlags) check() error {
	if err := f.readIssuers(); err != nil {
		return err
	}
	f.cfg.TimeIsAge = f.age == ageOfDocument
	switch d := f.cfg.Debounce; {
	case f.cfg.TimeIsAge && len(f.cfg.Etcd.Endpoints) == 0:
		return errors.New("--document-age is for --etcd: in a directory, which has one owner, the creationTimestamp is the age")
	case (f.cfg.TLSCert == "") != (f.cfg.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key go together: give both or none")
	case d.After < 0 || d.Max < d.After:
		return fmt.Errorf("--debounce-max %s must not be less than --debounce-after %s, which must not be negative", d.Max, d.After)
	case f.cfg.MaxLifetime < time.Minute:
		return fmt.Errorf("--ca-max-lifetime %s: want at least 1m", f.cfg.MaxLifetime)
	case len(f.cfg.TLSNames) > 0 && (f.cfg.CA == "" || f.cfg.TLSCert != ""):
		return errors.New("--tls-name is for the certificate that --ca signs for this server, without --tls-cert")
	case f.cfg.MaxProxies < 0:
		return fmt.Errorf("--max-proxies %d: want a number of proxies, or 0 for any number", f.cfg.MaxProxies)
	case f.cfg.MaxConnectionIdle < 0:
		return fmt.Errorf("--max-connection-idle %s: want a time, or 0 for no limit", f.cfg.MaxConnectionIdle)
	case f.cfg.MaxProxiesPerIdentity < 0 || f.cfg.Registration.PerAccount < 0 || f.cfg.MaxNamespaceDocuments < 0 || f.cfg.MaxNamespaceBytes < 0:
		return errors.New("--max-proxies-per-identity, --max-workloads-per-account, --max-namespace-documents, --max-namespace-bytes: want numbers that are not negative")
	case f.cfg.MaxConnectionAge != 0 && f.cfg.MaxConnectionAge < minConnectionAge:
		return fmt.Errorf("--max-connection-age %s: want at least %s, since each proxy asks for everything again; or 0 for no limit", f.cfg.MaxConnectionAge, minConnectionAge)
	case f.cfg.DrainTime < 0 || f.cfg.DrainTime > maxDrainTime:
		return fmt.Errorf("--drain-time %s: want 0 to %s", f.cfg.DrainTime, maxDrainTime)
	case f.cfg.Throttle < 1:
		return fmt.Errorf("--push-throttle %d: want at least 1", f.cfg.Throttle)
	}
	return nil
}
