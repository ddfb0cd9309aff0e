package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp/syntax"
	"strings"
	"syscall"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/environ"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/fieldrules"
	"github.com/holdfast-xds/holdfast/internal/redact"
)

// Check applies the rules of Envoy's API to b: the field rules, also those of known messages inside an Any; that the node has
// an id and a cluster, which Envoy needs for xDS; that the brackets in regular expressions of stats tags are closed; and
// that static clusters, static listeners and runtime layers have unique names. It reports every field that violates a rule.
func Check(b *bootstrapv3.Bootstrap) error {
	var broken []error
	violations := func(m proto.Message, path string) {
		for _, v := range fieldrules.Check(m) {
			v.Path = strings.TrimPrefix(path+"."+v.Path, ".")
			broken = append(broken, v)
		}
	}
	violations(b, "")
	err := protorange.Options{Stable: true, Resolver: envoytypes.Resolver}.Range(b.ProtoReflect(), func(p protopath.Values) error {
		if p.Index(-1).Step.Kind() == protopath.AnyExpandStep {
			violations(p.Index(-1).Value.Message().Interface(), fieldPath(p))
		}
		return nil
	}, nil)
	broken = append(broken, err)
	if b.GetNode().GetId() == "" || b.GetNode().GetCluster() == "" {
		broken = append(broken, errors.New("node: id and cluster are needed for xDS: does an overlay or a patch remove them?"))
	}
	for n, tag := range b.GetStatsConfig().GetStatsTags() {
		if err := checkClosed(tag.GetRegex()); err != nil {
			broken = append(broken, fmt.Errorf("stats_config.stats_tags[%d].regex: %w", n, err))
		}
	}
	broken = append(broken, duplicates("static_resources.clusters", b.GetStaticResources().GetClusters())...)
	broken = append(broken, duplicates("static_resources.listeners", b.GetStaticResources().GetListeners())...)
	broken = append(broken, duplicates("layered_runtime.layers", b.GetLayeredRuntime().GetLayers())...)
	if err := errors.Join(broken...); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// checkClosed returns an error for an unclosed bracket in a regular expression. It checks nothing else, because Envoy's
// syntax differs from Go's.
func checkClosed(regex string) error {
	var bad *syntax.Error
	if _, err := syntax.Parse(regex, syntax.Perl); !errors.As(err, &bad) {
		return nil
	}
	switch bad.Code {
	case syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrMissingBracket, syntax.ErrTrailingBackslash:
		return fmt.Errorf("%q: %s", regex, bad.Code)
	}
	return nil
}

// fieldPath returns the path of a value in the file.
func fieldPath(p protopath.Values) string {
	var b strings.Builder
	for _, step := range p.Path {
		switch step.Kind() {
		case protopath.FieldAccessStep:
			b.WriteString("." + step.FieldDescriptor().TextName())
		case protopath.ListIndexStep:
			fmt.Fprintf(&b, "[%d]", step.ListIndex())
		case protopath.MapIndexStep:
			fmt.Fprintf(&b, "[%q]", step.MapIndex().String())
		}
	}
	return strings.TrimPrefix(b.String(), ".")
}

// duplicates returns an error for each non-empty name that occurs more than once in a field.
func duplicates[T interface{ GetName() string }](field string, all []T) (errs []error) {
	seen := make(map[string]int)
	for _, one := range all {
		if name := one.GetName(); name != "" {
			if seen[name]++; seen[name] == 2 {
				errs = append(errs, fmt.Errorf("%s: %q is there twice", field, name))
			}
		}
	}
	return errs
}

// Sensitive returns what in b is secret, "" for nothing. The result of Build contains no secret, but an overlay may add
// one. The text names a field, never its value.
func Sensitive(b *bootstrapv3.Bootstrap) (why string) {
	packed, err := anypb.New(b)
	if err != nil {
		return "" // Check rejects a bootstrap that cannot be encoded
	}
	var finder redact.Finder
	return finder.Sensitive(packed)
}

// validateTimeout bounds a run of `envoy --mode validate`, which resolves no names and opens no connections.
const validateTimeout = 30 * time.Second

// CheckWithEnvoy lets an Envoy validate text, through a temporary file in dir, "" for the default directory. The error
// contains Envoy's own messages; a NotCheckedError says that Envoy gave no answer. env are the variables of Envoy, nil for
// those of this process without holdfast's own.
func CheckWithEnvoy(ctx context.Context, binary string, text []byte, f Format, dir string, env []string) (err error) {
	extension := strings.ToLower(string(f))
	file, err := os.CreateTemp(dir, ".holdfast-validate.*."+extension) // readable for its owner only, because it may contain secrets
	if err != nil {
		return &NotCheckedError{fmt.Errorf("bootstrap: validate: %w", err)}
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	if _, err := file.Write(text); err != nil {
		return &NotCheckedError{fmt.Errorf("bootstrap: validate: %w", err)}
	}
	ctx, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	envoy := exec.CommandContext(ctx, binary, "--mode", "validate", "-c", file.Name(),
		"--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
	envoy.WaitDelay = time.Second
	if envoy.Env = env; env == nil {
		envoy.Env = environ.ForChild()
	}
	out, err := envoy.CombinedOutput()
	if err == nil {
		return nil
	}
	messages := strings.ReplaceAll(strings.TrimSpace(string(out)), file.Name(), "the bootstrap")
	err = fmt.Errorf("bootstrap: %s --mode validate: %w\n%s", binary, err, messages)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || ctx.Err() != nil || wasKilled(exit) {
		return &NotCheckedError{err}
	}
	return err
}

// wasKilled reports whether somebody else ended a process: a crash is a signal, too.
func wasKilled(exit *exec.ExitError) bool {
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && (status.Signal() == syscall.SIGKILL || status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGINT)
}

// checkFields applies the field rules of Envoy's API to m, a message of that API, and reports every field that violates one by
// its path in the file, such as static_resources.clusters[0].name. It does not look into messages inside an Any.
func checkFields(m proto.Message) error {
	var broken []error
	for _, v := range fieldrules.Check(m) {
		broken = append(broken, v)
	}
	return errors.Join(broken...)
}
