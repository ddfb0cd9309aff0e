package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/environ"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/redact"
)

// Check applies the rules of Envoy's API to b: those of Validate, also to what is inside an Any, as far as they are known,
// that there is a node with an id and a cluster, which Envoy needs for xDS, that the regular expressions of stats tags are
// closed, and that static clusters, static listeners and layers of the runtime have names of their own. It reports every field that
// breaks one, and the types of messages whose own rules nobody but Envoy knows.
func Check(b *bootstrapv3.Bootstrap) (unknown []string, err error) {
	var broken []error
	if err := Validate(b); err != nil {
		broken = append(broken, unprefixed(err))
	}
	err = protorange.Options{Stable: true, Resolver: envoytypes.Resolver}.Range(b.ProtoReflect(), func(p protopath.Values) error {
		if p.Index(-1).Step.Kind() != protopath.AnyExpandStep {
			return nil
		}
		switch inside := p.Index(-1).Value.Message().Interface().(type) {
		case message:
			if err := inside.ValidateAll(); err != nil {
				eachViolation(placeOf(p), err, func(path, reason string) {
					broken = append(broken, fmt.Errorf("%s: %s", path, reason))
				})
			}
		case *dynamicpb.Message:
			unknown = append(unknown, string(inside.Descriptor().FullName()))
		}
		return nil
	}, nil)
	broken = append(broken, err)
	if b.GetNode().GetId() == "" || b.GetNode().GetCluster() == "" {
		broken = append(broken, errors.New("node: id and cluster are needed for xDS: does an overlay or a patch take them away?"))
	}
	for n, tag := range b.GetStatsConfig().GetStatsTags() {
		if err := unclosed(tag.GetRegex()); err != nil {
			broken = append(broken, fmt.Errorf("stats_config.stats_tags[%d].regex: %w", n, err))
		}
	}
	for _, c := range twice(b.GetStaticResources().GetClusters()) {
		broken = append(broken, fmt.Errorf("static_resources.clusters: %q is there twice", c))
	}
	for _, l := range twice(b.GetStaticResources().GetListeners()) {
		broken = append(broken, fmt.Errorf("static_resources.listeners: %q is there twice", l))
	}
	for _, l := range twice(b.GetLayeredRuntime().GetLayers()) {
		broken = append(broken, fmt.Errorf("layered_runtime.layers: %q is there twice", l))
	}
	if err := errors.Join(broken...); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	slices.Sort(unknown)
	return slices.Compact(unknown), nil
}

// unclosed says what is not closed in a regular expression, nil for nothing. It looks for that alone: Envoy's expressions
// are not those of Go.
func unclosed(regex string) error {
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

// placeOf is the path of a value in the file.
func placeOf(p protopath.Values) string {
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

// twice returns the names, but for empty ones, that are not unique.
func twice[T interface{ GetName() string }](all []T) []string {
	var names []string
	seen := make(map[string]int)
	for _, one := range all {
		if name := one.GetName(); name != "" {
			if seen[name]++; seen[name] == 2 {
				names = append(names, name)
			}
		}
	}
	return names
}

// Sensitive says what in b is secret, "" for nothing: what Build makes holds no secret, but an overlay may bring one. The
// answer names a field, never a value.
func Sensitive(b *bootstrapv3.Bootstrap) (why string) {
	packed, err := anypb.New(b)
	if err != nil {
		return "" // a bootstrap that has no wire form is refused elsewhere
	}
	var finder redact.Finder
	return finder.Sensitive(packed)
}

// validateTimeout bounds a run of `envoy --mode validate`, which resolves no names and connects to nothing.
const validateTimeout = 30 * time.Second

// CheckWithEnvoy asks an Envoy whether it accepts text, which it is given in a temporary file in dir, "" for that of the
// system. The error has Envoy's own words.
func CheckWithEnvoy(ctx context.Context, binary string, text []byte, f Format, dir string) (err error) {
	extension := ".yaml"
	if f == JSON {
		extension = ".json"
	}
	file, err := os.CreateTemp(dir, ".holdfast-validate.*"+extension) // readable to its owner only, whatever is in it
	if err != nil {
		return fmt.Errorf("bootstrap: validate: %w", err)
	}
	defer func() { err = errors.Join(err, discard(file)) }()
	if _, err := file.Write(text); err != nil {
		return fmt.Errorf("bootstrap: validate: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	envoy := exec.CommandContext(ctx, binary, "--mode", "validate", "-c", file.Name(),
		"--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
	envoy.WaitDelay = time.Second
	envoy.Env = environ.ForChild()
	out, err := envoy.CombinedOutput()
	if err != nil {
		said := strings.ReplaceAll(strings.TrimSpace(string(out)), file.Name(), "the bootstrap")
		return fmt.Errorf("bootstrap: %s --mode validate: %w\n%s", binary, err, said)
	}
	return nil
}
