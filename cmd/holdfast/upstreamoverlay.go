package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// Values of --upstream-overlay.
const (
	overlayNo      = "no"
	overlayTry     = "try"
	overlayRequire = "require"
)

const (
	// overlayTimeout is the default of --upstream-overlay-timeout.
	overlayTimeout = 10 * time.Second
	// overlayRetry is the pause before all control planes are asked again.
	overlayRetry = 500 * time.Millisecond
	// overlaySuffix is appended to --out for the file of what the control plane gave last.
	overlaySuffix = ".upstream-overlay"
)

// upstreamOverlay are the flags of changes to the bootstrap that a control plane serves (xds.BootstrapType).
type upstreamOverlay struct {
	mode    string
	timeout time.Duration
	addrs   []string
	config  upstream.Config
}

func (o *upstreamOverlay) add(c *command) {
	flags := c.section("Changes by the control plane")
	flags.Var(oneOf(&o.mode, overlayNo, overlayTry, overlayRequire), "upstream-overlay", "ask --upstream for changes to the bootstrap, and merge them before those of --overlay: holdfast-mesh serves the patches of EnvoyFilters with applyTo BOOTSTRAP. If no control plane answers, the changes of the last time (FILE"+overlaySuffix+", next to FILE of --out) are used, or else none with try, and an error with require")
	flags.Var(numberOf(&o.timeout, overlayTimeout, positive), "upstream-overlay-timeout", "maximum time to wait for the answer (`DURATION`)")
	flags.Var(texts(&o.addrs), "upstream", "`ADDR` of the control plane: host:port, unix:PATH or dns:///HOST:PORT; of several the first that answers")
	addUpstreamHeaders(flags, &o.config)
	addUpstreamSecurity(c, &o.config)
}

// check returns an error for flags that contradict one another.
func (o *upstreamOverlay) check() error {
	if o.mode == overlayNo {
		return nil
	}
	if len(o.servers()) == 0 {
		return errors.New("--upstream-overlay needs --upstream with a control plane that is reached by gRPC, such as --upstream xds.example.com:443")
	}
	_, err := o.clients()
	return err
}

// servers returns the addresses of those control planes that can be asked.
func (o *upstreamOverlay) servers() (addrs []string) {
	for _, addr := range o.addrs {
		if !strings.HasPrefix(addr, "file:") && !strings.HasPrefix(addr, "http://") && !strings.HasPrefix(addr, "https://") {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (o *upstreamOverlay) clients() (clients []*upstream.ADS, err error) {
	for _, addr := range o.servers() {
		cfg := o.config
		cfg.Addr = addr
		client, err := upstream.NewADS(cfg)
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	return clients, nil
}

// fetch asks the control planes, again and again, until one answers or the time is over.
func (o *upstreamOverlay) fetch(ctx context.Context, node *corev3.Node, accept func([]*discoveryv3.Resource) error) error {
	clients, err := o.clients()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	var failures []error
	for {
		failures = failures[:0]
		for i, client := range clients {
			// Each gets its share of the time that is left, so that one that is silent does not use it up.
			limited, done := context.WithTimeout(ctx, remaining(ctx)/time.Duration(len(clients)-i))
			err := client.Fetch(limited, node, xds.BootstrapType, accept)
			done()
			if err == nil {
				return nil
			}
			failures = append(failures, fmt.Errorf("%s: %w", client.Name(), err))
		}
		if !wake.Sleep(ctx, overlayRetry) {
			return errors.Join(failures...)
		}
	}
}

func remaining(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline()
	return max(time.Until(end), 0)
}

// mergeUpstream merges what the control plane changes in a bootstrap. What cannot be merged is left out, and told to the
// control plane and to the user.
func (f *bootstrapFlags) mergeUpstream(ctx context.Context, made *bootstrapv3.Bootstrap) (*bootstrapv3.Bootstrap, error) {
	if f.upstream.mode == overlayNo {
		return made, nil
	}
	validate, err := f.validator(ctx)
	if err != nil {
		return nil, err
	}
	merged := made
	merge := func(resources []*discoveryv3.Resource) error {
		parts, unread := partsOf(resources)
		var taken []bootstrap.Part
		var left []error
		merged, taken, left = bootstrap.MergeParts(made, parts, validate)
		if ctx.Err() != nil {
			return ctx.Err() // Envoy was stopped while it checked, which says nothing about any part
		}
		left = append(unread, left...)
		for _, err := range left { // one by one, because a line is shortened
			f.warn("of the changes by the control plane " + redact.Line(err.Error()))
		}
		f.keepUpstream(taken)
		return errors.Join(left...)
	}
	failure := f.upstream.fetch(ctx, nodeForBootstrap(made.GetNode()), merge)
	if ctx.Err() != nil {
		return nil, failed(ctx.Err())
	}
	if failure == nil {
		return merged, nil
	}
	last, err := f.lastUpstream()
	switch {
	case err == nil:
		f.warn(fmt.Sprintf("the control plane cannot be asked for changes to the bootstrap, those of the last time are used: %v", failure))
		_ = merge(last) // what is left out was told
		if ctx.Err() != nil {
			return nil, failed(ctx.Err())
		}
		return merged, nil
	case !errors.Is(err, fs.ErrNotExist):
		f.warn(fmt.Sprintf("the changes that the control plane made last cannot be read: %v", err))
	}
	if f.upstream.mode == overlayRequire {
		return nil, failed(fmt.Errorf("--upstream-overlay require: no control plane has answered within %s:\n%w", f.upstream.timeout, failure))
	}
	f.warn(fmt.Sprintf("the control plane cannot be asked for changes to the bootstrap, which has none: %v", failure))
	return made, nil
}

// nodeForBootstrap returns the node without what registers a workload: that begins when its Envoy connects.
func nodeForBootstrap(node *corev3.Node) *corev3.Node {
	node = proto.CloneOf(node)
	delete(node.GetMetadata().GetFields(), "AUTO_REGISTER_GROUP")
	return node
}

// partsOf reads parts of a bootstrap.
func partsOf(resources []*discoveryv3.Resource) (parts []bootstrap.Part, unread []error) {
	for _, r := range resources {
		_, name, _ := strings.Cut(r.GetName(), " ") // without the place in the order
		p := bootstrap.Part{Name: name, Bootstrap: &bootstrapv3.Bootstrap{}}
		if err := r.GetResource().UnmarshalTo(p.Bootstrap); err != nil {
			unread = append(unread, fmt.Errorf("%s is left out: it is no part of a bootstrap: %w", p.Name, err))
			continue
		}
		parts = append(parts, p)
	}
	return parts, unread
}

// validator returns a function with which an Envoy checks a bootstrap; nil if there is no Envoy. A control plane changes
// all bootstraps of a mesh at once: an Envoy is asked whenever there is one.
func (f *bootstrapFlags) validator(ctx context.Context) (func(*bootstrapv3.Bootstrap) error, error) {
	binary, err := f.envoyBinary()
	if err != nil || binary == "" {
		return nil, err
	}
	return func(b *bootstrapv3.Bootstrap) error {
		text, err := bootstrap.Encode(b, bootstrap.JSON)
		if err != nil {
			return err
		}
		return bootstrap.CheckWithEnvoy(ctx, binary, text, bootstrap.JSON, f.scratch())
	}, nil
}

// upstreamFile returns the file of what the control plane changed last; "" for none.
func (f *bootstrapFlags) upstreamFile() string {
	if f.out == "" || f.out == "-" {
		return ""
	}
	return f.out + overlaySuffix
}

// keepUpstream keeps what the control plane changes for a start without it.
func (f *bootstrapFlags) keepUpstream(parts []bootstrap.Part) {
	file := f.upstreamFile()
	if file == "" || f.print || f.diff {
		return
	}
	kept := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.BootstrapType}
	for i, p := range parts {
		packed, err := anypb.New(p.Bootstrap)
		if err != nil {
			continue // it came from the wire
		}
		kept.Resources = append(kept.Resources, &discoveryv3.Resource{Name: fmt.Sprintf("%06d %s", i, p.Name), Resource: packed})
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(kept)
	if err == nil {
		err = atomicfile.Write(file, text, f.mode)
	}
	if err != nil {
		f.warn(fmt.Sprintf("the changes by the control plane cannot be kept for a start without it: %v", err))
	}
}

// lastUpstream returns what keepUpstream kept; fs.ErrNotExist for nothing.
func (f *bootstrapFlags) lastUpstream() ([]*discoveryv3.Resource, error) {
	file := f.upstreamFile()
	if file == "" {
		return nil, fs.ErrNotExist
	}
	text, err := userfile.Read(file)
	if err != nil {
		return nil, err
	}
	kept := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(text, kept); err != nil || kept.GetTypeUrl() != xds.BootstrapType {
		return nil, fmt.Errorf("%s is not a file that holdfast has written", file)
	}
	return kept.GetResources(), nil
}
