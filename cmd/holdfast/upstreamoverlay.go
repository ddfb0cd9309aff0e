package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/environ"
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
	// overlaySuffix is appended to --out for the file of what the control plane gave last, and trialSuffix to that for what
	// no Envoy has run with yet.
	overlaySuffix = ".upstream-overlay"
	trialSuffix   = ".trial"
	// maxDeaths is how often Envoy must crash before it is live for the changes to be withdrawn.
	maxDeaths = 3
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
	addUpstreamProxy(flags, &o.config)
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
		if hasStream(addr) {
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
func (o *upstreamOverlay) fetch(ctx context.Context, node *corev3.Node, accept func(context.Context, []*discoveryv3.Resource) (nack, err error)) error {
	clients, err := o.clients()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	var failures, before []error
	for {
		failures, before = nil, failures
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
		if ctx.Err() != nil && before != nil {
			return errors.Join(before...) // of a round that had its time
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

// mergeUpstream merges what the control plane changes in a bootstrap, to which overlays will be applied. What cannot be merged
// is left out, and told to the control plane and to the user.
func (f *bootstrapFlags) mergeUpstream(ctx context.Context, made *bootstrapv3.Bootstrap, overlays []bootstrap.Overlay) (*bootstrapv3.Bootstrap, error) {
	if f.upstream.mode == overlayNo {
		return made, nil
	}
	binary, err := f.envoyBinary()
	if err != nil {
		return nil, err
	}
	var merged *bootstrapv3.Bootstrap
	var taken []bootstrap.Part
	failure := f.upstream.fetch(ctx, nodeForBootstrap(made.GetNode()), func(ctx context.Context, resources []*discoveryv3.Resource) (nack, err error) {
		parts, err := partsOf(resources)
		if err != nil {
			return nil, err
		}
		var left []error
		if merged, taken, left, err = bootstrap.MergeParts(made, parts, f.checkMerged(ctx, made, overlays, binary)); err != nil {
			return nil, fmt.Errorf("the changes cannot be checked: %w", err)
		}
		f.warnLeft(left)
		return errors.Join(left...), nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, cli.Failed(ctx.Err())
	case failure == nil && !f.diedOf(taken):
		f.keepUpstream(taken, made, overlays)
		return merged, nil
	case failure == nil:
		f.warn("Envoy crashed with these changes by the control plane before it was live, at an earlier start: those before them are used until they change")
	}
	last, err := f.lastUpstream()
	switch {
	case err == nil:
		if failure != nil {
			f.warn(fmt.Sprintf("the control plane cannot be asked for changes to the bootstrap, those of the last time are used: %v", failure))
		}
		merged, taken := f.mergeLast(made, overlays, last)
		f.keepUpstream(taken, made, overlays) // it may have had no Envoy yet
		return merged, nil
	case !errors.Is(err, fs.ErrNotExist):
		f.warn(fmt.Sprintf("the changes that the control plane made last cannot be read: %v", err))
	}
	switch {
	case failure == nil:
		return made, nil
	case f.upstream.mode == overlayRequire:
		return nil, cli.Failed(fmt.Errorf("--upstream-overlay require: no control plane has answered within %s:\n%w", f.upstream.timeout, failure))
	}
	f.warn(fmt.Sprintf("the control plane cannot be asked for changes to the bootstrap, which has none: %v", failure))
	return made, nil
}

// warnLeft tells the user what is left out: one by one, because a line is shortened.
func (f *bootstrapFlags) warnLeft(left []error) {
	for _, err := range left {
		f.warn("of the changes by the control plane " + redact.Line(err.Error()))
	}
}

// mergeLast merges what was merged at an earlier start, when an Envoy has checked it.
func (f *bootstrapFlags) mergeLast(made *bootstrapv3.Bootstrap, overlays []bootstrap.Overlay, last []*discoveryv3.Resource) (*bootstrapv3.Bootstrap, []bootstrap.Part) {
	parts, err := partsOf(last)
	if err != nil {
		f.warn(fmt.Sprintf("the changes that the control plane made last cannot be read: %v", err))
		return made, nil
	}
	merged, taken, left, _ := bootstrap.MergeParts(made, parts, func(b *bootstrapv3.Bootstrap) error {
		_, err := finished(b, overlays)
		return err
	})
	f.warnLeft(left)
	return merged, taken
}

// finished returns a bootstrap with its overlays as text. The error says what is wrong with it by what is known without Envoy.
func finished(b *bootstrapv3.Bootstrap, overlays []bootstrap.Overlay) (text []byte, err error) {
	final, err := bootstrap.Apply(b, overlays...)
	if err == nil {
		err = bootstrap.Check(final)
	}
	if err != nil {
		return nil, err
	}
	return bootstrap.Encode(final, bootstrap.JSON) // a message of a type that is not known cannot be written
}

// checkMerged returns how a bootstrap with changes of the control plane is checked, until ctx ends. A control plane changes all
// bootstraps of a mesh at once: an Envoy is asked whenever there is one, "" for none, unless it rejects the bootstrap without
// the changes as well.
func (f *bootstrapFlags) checkMerged(ctx context.Context, made *bootstrapv3.Bootstrap, overlays []bootstrap.Overlay, binary string) func(*bootstrapv3.Bootstrap) error {
	check := func(b *bootstrapv3.Bootstrap) (byRules, byEnvoy error) {
		text, err := finished(b, overlays)
		if err != nil || binary == "" {
			return err, nil
		}
		return nil, bootstrap.CheckWithEnvoy(ctx, binary, text, bootstrap.JSON, f.scratch(), environ.Minimal())
	}
	blamed := false // the bootstrap without changes was looked at
	return func(b *bootstrapv3.Bootstrap) error {
		err := cmp.Or(check(b))
		if err == nil || blamed {
			return err
		}
		blamed = true
		byRules, byEnvoy := check(made)
		_, unknown := errors.AsType[*bootstrap.NotCheckedError](byEnvoy)
		switch {
		case byRules != nil:
			return &bootstrap.NotCheckedError{Err: byRules}
		case byEnvoy == nil || unknown:
			return cmp.Or(byEnvoy, err)
		}
		f.warn(fmt.Sprintf("Envoy rejects the bootstrap also without the changes by the control plane, which are therefore checked by the rules of its API alone: %s", redact.Line(byEnvoy.Error())))
		binary = ""
		return cmp.Or(check(b))
	}
}

// nodeForBootstrap returns the node without what registers a workload: that begins when its Envoy connects.
func nodeForBootstrap(node *corev3.Node) *corev3.Node {
	node = proto.CloneOf(node)
	delete(node.GetMetadata().GetFields(), "AUTO_REGISTER_GROUP")
	return node
}

// partsOf reads parts of a bootstrap.
func partsOf(resources []*discoveryv3.Resource) (parts []bootstrap.Part, err error) {
	for _, r := range resources {
		_, name, _ := strings.Cut(r.GetName(), " ") // without the place in the order
		p := bootstrap.Part{Name: name, Bootstrap: &bootstrapv3.Bootstrap{}}
		if err := r.GetResource().UnmarshalTo(p.Bootstrap); err != nil {
			return nil, fmt.Errorf("the resource %q is no part of a bootstrap: %w", r.GetName(), err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// upstreamFile returns the file of what the control plane changed last; "" for none.
func (f *bootstrapFlags) upstreamFile() string {
	if f.out == "" || f.out == "-" {
		return ""
	}
	return f.out + overlaySuffix
}

// keepUpstream keeps what the control plane changes for a start without it. If this agent runs the Envoy, it is kept once an
// Envoy was live with it.
func (f *bootstrapFlags) keepUpstream(parts []bootstrap.Part, made *bootstrapv3.Bootstrap, overlays []bootstrap.Overlay) {
	file := f.upstreamFile()
	if file == "" || f.print || f.diff {
		return
	}
	record := recordOf(parts)
	if last, err := readRecord(file); err == nil && sameParts(last, record) {
		return
	}
	if !f.runsEnvoy {
		f.writeRecord(file, record)
		return
	}
	if trial, err := readRecord(file + trialSuffix); err == nil && sameParts(trial, record) {
		record.SystemVersionInfo = trial.GetSystemVersionInfo() // how often Envoy has crashed with it
	}
	f.writeRecord(file+trialSuffix, record)
	f.trial = &overlayTrial{flags: f, file: file, record: record, made: made, overlays: overlays}
}

// diedOf reports whether Envoy has crashed so often with changes, before it was live, that they are withdrawn.
func (f *bootstrapFlags) diedOf(parts []bootstrap.Part) bool {
	file := f.upstreamFile()
	if file == "" || !f.runsEnvoy {
		return false
	}
	trial, err := readRecord(file + trialSuffix)
	return err == nil && sameParts(trial, recordOf(parts)) && deaths(trial) >= maxDeaths
}

// lastUpstream returns what keepUpstream kept or, if that is nothing, what is on trial and has done no harm yet;
// fs.ErrNotExist for nothing.
func (f *bootstrapFlags) lastUpstream() ([]*discoveryv3.Resource, error) {
	file := f.upstreamFile()
	if file == "" {
		return nil, fs.ErrNotExist
	}
	record, err := readRecord(file)
	if errors.Is(err, fs.ErrNotExist) {
		if trial, trialErr := readRecord(file + trialSuffix); trialErr == nil && deaths(trial) == 0 {
			return trial.GetResources(), nil
		}
	}
	return record.GetResources(), err
}

// writeRecord writes parts of a bootstrap, which may have secrets, to a file that only this user may read.
func (f *bootstrapFlags) writeRecord(file string, record *discoveryv3.DeltaDiscoveryResponse) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(record)
	if err == nil {
		err = atomicfile.Write(file, text, 0o600)
	}
	if err != nil {
		f.warn(fmt.Sprintf("the changes by the control plane cannot be kept for a start without it: %v", err))
	}
}

// recordOf returns parts as they are kept.
func recordOf(parts []bootstrap.Part) *discoveryv3.DeltaDiscoveryResponse {
	record := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.BootstrapType}
	for i, p := range parts {
		packed, err := anypb.New(p.Bootstrap)
		if err != nil {
			continue // it came from the wire
		}
		record.Resources = append(record.Resources, &discoveryv3.Resource{Name: fmt.Sprintf("%06d %s", i, p.Name), Resource: packed})
	}
	return record
}

func readRecord(file string) (*discoveryv3.DeltaDiscoveryResponse, error) {
	text, err := userfile.Read(file)
	if err != nil {
		return nil, err
	}
	record := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(text, record); err != nil || record.GetTypeUrl() != xds.BootstrapType {
		return nil, fmt.Errorf("%s is not a file that holdfast has written", file)
	}
	return record, nil
}

func sameParts(a, b *discoveryv3.DeltaDiscoveryResponse) bool {
	return slices.EqualFunc(a.GetResources(), b.GetResources(), func(x, y *discoveryv3.Resource) bool { return proto.Equal(x, y) })
}

// deaths returns how often Envoy has crashed with a record before it was live.
func deaths(record *discoveryv3.DeltaDiscoveryResponse) int {
	n, _ := strconv.Atoi(record.GetSystemVersionInfo())
	return n
}

// overlayTrial is the first run of an Envoy with changes by the control plane: an envoy.Trial. What Envoy's own check accepts
// may still end it, such as an address that is in use.
type overlayTrial struct {
	flags    *bootstrapFlags
	file     string
	record   *discoveryv3.DeltaDiscoveryResponse
	made     *bootstrapv3.Bootstrap
	overlays []bootstrap.Overlay
}

// Lived keeps the changes.
func (t *overlayTrial) Lived() {
	t.record.SystemVersionInfo = ""
	t.flags.writeRecord(t.file, t.record)
	if err := os.Remove(t.file + trialSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.flags.warn(fmt.Sprintf("after the trial of the changes by the control plane: %v", err))
	}
}

// Died counts the crash, and after maxDeaths writes the bootstrap with the changes before, or none.
func (t *overlayTrial) Died() (over bool) {
	n := deaths(t.record) + 1
	t.record.SystemVersionInfo = strconv.Itoa(n)
	t.flags.writeRecord(t.file+trialSuffix, t.record)
	if n < maxDeaths {
		return false
	}
	last, _ := t.flags.lastUpstream()
	before, _ := t.flags.mergeLast(t.made, t.overlays, last)
	final, err := bootstrap.Apply(before, t.overlays...)
	if err == nil {
		err = t.flags.writeFile(final)
	}
	if err != nil {
		t.flags.warn(fmt.Sprintf("Envoy crashes with the changes by the control plane, and the bootstrap without them cannot be written: %v", err))
		return false
	}
	t.flags.warn(fmt.Sprintf("Envoy crashed %d times with the changes by the control plane before it was live: the bootstrap is written with those before them, until they change", n))
	return true
}
