// Command holdfast-injector is a mutating webhook for Kubernetes that adds holdfast and Envoy to pods when they are created.
//
// This package contains the command tree: flags, wiring and exit codes. The webhook is in package internal/injector.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/holdfast-xds/holdfast/internal/cgroup"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/injector"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// version is set by the linker: -ldflags '-X main.version=v1.2.3'. Otherwise it is the version of
// the module.
var version = "dev"

func main() {
	version = cli.Version(version)
	cli.Main(execute)
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	return cli.Exit(stderr, "holdfast-injector", root.ExecuteContext(ctx))
}

const rootLong = `A mutating webhook for Kubernetes that adds holdfast and Envoy to pods when they are created, as
holdfast inject does to their manifests. Pods of namespaces with the label
holdfast.dev/injection: enabled are injected, and pods with the label holdfast.dev/inject: "true".

The settings of pods are in the file of --settings; flags of its own can be in that of --flags-file.`

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	return cli.Root("holdfast-injector", "a mutating webhook that injects holdfast and Envoy", rootLong, version, stdout, stderr, nil,
		newServe(stderr), newCheck(stdout))
}

const serveLong = `Answer admission reviews at POST /inject of --listen, and probes and metrics at /livez, /readyz and
/metrics of --admin.

The serving certificate is made by an authority that replicas share through --secret, and the
caBundle of --webhook-configuration is written, also after somebody else has changed it. While the
API server does not answer at the start, the injector is not ready and tries again.`

// namespaceFile is where Kubernetes puts the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func newServe(stderr io.Writer) *cobra.Command {
	var cfg injector.Config
	var log cli.LogFlags
	var kubeconfig, onReject string
	c := &cobra.Command{
		Use: "serve --settings FILE", Short: "serve the webhook", Long: serveLong, Args: cobra.NoArgs,
		Example: "holdfast-injector serve --settings /etc/holdfast-injector/settings.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Deny = onReject == "deny"
			cfg.Namespace = cmp.Or(cfg.Namespace, ownNamespace())
			if cfg.Namespace == "" {
				return errors.New("--namespace is missing: name the namespace of the injector's Service and Secret, here or in POD_NAMESPACE")
			}
			return cli.Service("holdfast-injector", stderr, nil, func(queue *logqueue.Queue) error {
				logger := log.Logger(queue.From(cli.Own))
				cli.ServiceLog(queue, logger)
				limits, err := cgroup.Read(os.DirFS("/"))
				if err != nil {
					logger.Warn("the limits of the container cannot be read: assuming that there are none", "err", err)
				}
				memory.Limit(os.Getenv, limits.Memory, logger)
				klog.SetSlogLogger(logger.With("of", "client-go"))
				cfg.Version, cfg.Log, cfg.Output = version, logger, queue
				if cfg.API, err = apiServer(kubeconfig); err != nil {
					return cli.Failed(err)
				}
				i, err := injector.New(cfg)
				if err != nil {
					return err
				}
				ctx, cancel := context.WithCancel(cmd.Context())
				defer cancel()
				go memory.GiveBack(ctx, logger)
				return cli.Failed(i.Run(ctx))
			})
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVar(&cfg.Settings, "settings", "", "`FILE` with what pods are injected with, by the flags of holdfast inject; read again when it changes. Required")
	flags.Var(cli.Choice(&onReject, "allow", "deny"), "on-reject", "what becomes of a pod that cannot be injected: allow creates it without sidecars, with a warning; deny does not")
	flags.StringVar(&cfg.Listen, "listen", ":15017", "`ADDR`, host:port, of the webhook, with TLS")
	flags.StringVar(&cfg.Admin, "admin", ":15014", "`ADDR`, host:port, of probes and metrics")
	flags.StringVar(&cfg.Namespace, "namespace", "", "`NAMESPACE` of the injector's Service and Secret, in which it injects nothing (default POD_NAMESPACE, or that of the pod)")
	flags.StringVar(&cfg.Service, "service", "holdfast-injector", "`NAME` of the Service by which the API server calls the injector")
	flags.StringVar(&cfg.Secret, "secret", "holdfast-injector-ca", "`NAME` of the Secret with the authority that the replicas share")
	flags.StringVar(&cfg.WebhookConfiguration, "webhook-configuration", "holdfast-injector", "`NAME` of the MutatingWebhookConfiguration whose caBundle is written")
	flags.DurationVar(&cfg.CALifetime, "ca-lifetime", 365*24*time.Hour, "`TIME` for which an authority is valid; the next one is trusted when a third of it is left. At least four times --cert-lifetime")
	flags.DurationVar(&cfg.CertLifetime, "cert-lifetime", 24*time.Hour, "`TIME` for which a serving certificate is valid; it is renewed after half of it. At least 1m")
	flags.DurationVar(&cfg.DrainTime, "drain-time", 5*time.Second, "`TIME` for which requests are answered after SIGTERM, until the Service leads elsewhere")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "`FILE` by which the API server is reached; empty: as a pod of the cluster")
	log.Add(flags)
	return c
}

// newCheck checks a file of settings without a cluster, for pipelines.
func newCheck(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "check a file of --settings without a cluster", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := userfile.Read(args[0])
			if err != nil {
				return cli.Failed(err)
			}
			if _, err := injector.ParseSettings(text); err != nil {
				return cli.Failed(fmt.Errorf("%s: %w", args[0], err))
			}
			_, err = fmt.Fprintf(stdout, "%s: valid\n", args[0])
			return cli.Failed(err)
		},
	}
}

// ownNamespace returns the namespace of the pod, "" outside of a cluster.
func ownNamespace() string {
	text, _ := os.ReadFile(namespaceFile)
	return cmp.Or(os.Getenv("POD_NAMESPACE"), strings.TrimSpace(string(text)))
}

func apiServer(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("how the API server is reached: %w (outside of a cluster give --kubeconfig)", err)
	}
	config.UserAgent = "holdfast-injector/" + version
	return config, nil
}
