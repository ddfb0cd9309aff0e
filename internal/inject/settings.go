package inject

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// Shape is how holdfast and Envoy are put into a pod.
type Shape string

// The shapes. docs/deploy.md says which is for whom.
const (
	NativeSidecar Shape = "native-sidecar" // Envoy in a container of its own
	EnvoyChild    Shape = "envoy-child"    // Envoy as the child of holdfast
)

// Shapes returns all shapes.
func Shapes() []Shape { return []Shape{NativeSidecar, EnvoyChild} }

// Resources are requests and limits of a container, as Kubernetes' quantities. An empty one is that of the shape; "0" is
// none.
type Resources struct{ CPU, Memory, CPULimit, MemoryLimit string }

// Settings are what an injection depends on. The zero value is that of the overlays, but for the upstreams, which have no
// default. Annotations of a pod override Shape, Upstreams, TokenAudience, ConfigMap,
// CAConfigMap, Agent, Proxy and PreStopSleep.
type Settings struct {
	Shape Shape
	// Image is that of holdfast, ChildImage that of holdfast with Envoy, EnvoyImage that of Envoy.
	Image, ChildImage, EnvoyImage string
	// Upstreams are the control planes. They may also be in Config.
	Upstreams []string
	// TokenAudience is the audience of the pod's token for the control plane; empty: the host of the first upstream.
	TokenAudience string
	// Config is a file of settings, of the flags of `holdfast run` and `holdfast bootstrap`; its keys take the place of
	// those of the overlays.
	Config []byte
	// ConfigMap is the name of a ConfigMap in the pod's namespace that has the settings as holdfast.yaml; empty: the pod
	// has them as an annotation.
	ConfigMap string
	// CAConfigMap is the name of a ConfigMap in the pod's namespace whose key ca.crt has the authorities that the control
	// plane's certificate must lead to; empty: what upstream-ca of Config says, or those of the image.
	CAConfigMap string
	// Agent and Proxy are the resources of holdfast and of Envoy. Where holdfast runs Envoy, those of Proxy are those of
	// their container.
	Agent, Proxy Resources
	// PreStopSleep is how long the user's containers go on when the pod is to end, in whole seconds, unless they have a
	// preStop hook; 0: not. NewSettings has 10 s.
	PreStopSleep time.Duration
	// Validate checks the settings that the agent will read, beyond their form; nil for no check. Check calls it, and an
	// injection does for a pod with annotations that override settings.
	Validate func(config []byte) error
}

// NewSettings returns the settings of the overlays.
func NewSettings() Settings { return Settings{Shape: NativeSidecar, PreStopSleep: 10 * time.Second} }

//go:embed templates
var templates embed.FS

const (
	defaultGrace = int64(30) // seconds, of Kubernetes
	// graceReserve is how much longer than the end of holdfast and Envoy the end of a pod may take.
	graceReserve = 25 * time.Second
	// maxConfig limits the settings in an annotation: all annotations of a pod together have at most 256 KiB.
	maxConfig = 128 << 10
	// configFile is the name of the settings, among the templates and in the volume of a pod.
	configFile = "holdfast.yaml"
	caDir      = "/etc/holdfast-ca"
	caFile     = caDir + "/ca.crt"
)

// fixed are keys of the settings whose values the containers, volumes and probes of the shapes rely on.
var fixed = []string{"socket", "admin", "state-dir", "out", "bootstrap", "pod-labels", "pod-annotations", "ready-listen", "stats-listen", "health", "socket-group", "config"}

// Check returns an error if no pod could be injected with the settings. Call it once before any injection.
func (s Settings) Check() error {
	_, err := s.checked("")
	return err
}

// checked returns the settings with defaults, checked. where is "" or names what the values come from.
func (s Settings) checked(where string) (Settings, error) {
	s.Shape = cmp.Or(s.Shape, NativeSidecar)
	if !slices.Contains(Shapes(), s.Shape) {
		return s, fmt.Errorf("%sthere is no shape %q: want %s or %s", where, s.Shape, NativeSidecar, EnvoyChild)
	}
	for _, name := range []string{s.ConfigMap, s.CAConfigMap} {
		if name != "" && !objectName.MatchString(name) {
			return s, fmt.Errorf("%s%q is no name of a ConfigMap", where, name)
		}
	}
	if s.ConfigMap != "" && len(s.Config) > 0 {
		return s, errors.New("settings of a file and a ConfigMap: want one of them, since the ConfigMap has all settings")
	}
	if s.PreStopSleep < 0 || s.PreStopSleep%time.Second != 0 || s.PreStopSleep > time.Hour {
		return s, fmt.Errorf("%sa sleep of %s before the end: want whole seconds, at most 1h", where, s.PreStopSleep)
	}
	for name, r := range map[string]Resources{"agent": s.Agent, "proxy": s.Proxy} {
		if err := r.check(); err != nil {
			return s, fmt.Errorf("%s%s: %w", where, name, err)
		}
	}
	config, err := s.config()
	if err != nil || s.Validate == nil || s.ConfigMap != "" {
		return s, err
	}
	text, err := encode(config)
	if err != nil {
		return s, err
	}
	if err := s.Validate(text); err != nil {
		return s, fmt.Errorf("%ssettings: %w", where, err)
	}
	return s, nil
}

// objectName matches the name of an object of Kubernetes.
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

var quantity = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$`)

func (r Resources) check() error {
	for name, q := range map[string]string{"CPU": r.CPU, "memory": r.Memory, "CPU limit": r.CPULimit, "memory limit": r.MemoryLimit} {
		if q != "" && !quantity.MatchString(q) {
			return fmt.Errorf("%s %q: want a quantity such as 100m or 256Mi", name, q)
		}
	}
	for _, pair := range [][2]string{{r.CPU, r.CPULimit}, {r.Memory, r.MemoryLimit}} {
		if pair[0] != "" && pair[1] != "" && amount(pair[1]) > 0 && amount(pair[0]) > amount(pair[1]) {
			return fmt.Errorf("the request of %s is more than the limit of %s", pair[0], pair[1])
		}
	}
	return nil
}

// amount returns what a quantity means, of CPUs or bytes.
func amount(q string) float64 {
	number := strings.TrimRight(q, "mkMGTi")
	n, _ := strconv.ParseFloat(number, 64)
	factors := map[string]float64{"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
	return n * factors[q[len(number):]]
}

// parsed returns a file of settings as a mapping.
func parsed(file []byte) (*yaml.Node, error) {
	d, err := yamledit.Parse(file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("settings: %w", err)
	case d.Root == nil:
		return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}, nil
	case d.Root.Kind != yaml.MappingNode:
		return nil, errors.New("settings: want a mapping of flag names to values, one a line, such as `drain-timeout: 30s`")
	}
	if err := d.RepeatedKey(); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	return yamledit.Expand(d.Root)
}

// trees are the files of templates/ that were parsed, by name: a large list is injected with the same ones again and again.
var trees sync.Map

// templateTree returns a file of templates/, to be changed, with its aliases written out.
func templateTree(name string) (*yaml.Node, error) {
	tree, ok := trees.Load(name)
	if !ok {
		file, err := templates.ReadFile("templates/" + name)
		if err != nil {
			return nil, err
		}
		made, err := parsed(file)
		if err != nil {
			return nil, err
		}
		tree, _ = trees.LoadOrStore(name, made)
	}
	return yamledit.Clone(tree.(*yaml.Node)), nil
}

// config returns the settings that the agent reads, without comments.
func (s Settings) config() (*yaml.Node, error) {
	all, err := templateTree(configFile)
	if err != nil {
		return nil, err
	}
	if s.ConfigMap != "" {
		return all, nil // the real ones are not known
	}
	own, err := parsed(s.Config)
	if err != nil {
		return nil, err
	}
	upstreams := indexOf(own, "upstream") >= 0
	for _, pair := range keys(own) {
		key, value := pair.Content[0].Value, pair.Content[1]
		if was := yamledit.Value(all, key); slices.Contains(fixed, key) && (was == nil || value.Kind != yaml.ScalarNode || was.Value != value.Value) {
			return nil, fmt.Errorf("settings: %s cannot be changed, because the containers and volumes that are injected rely on it: remove it", key)
		}
		put(all, key, value)
	}
	if len(s.Upstreams) > 0 {
		value := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
		for _, u := range s.Upstreams {
			value.Content = append(value.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: u, Style: yaml.DoubleQuotedStyle})
		}
		put(all, "upstream", value)
	} else if !upstreams {
		remove(all, "upstream")
	}
	if s.CAConfigMap != "" {
		put(all, "upstream-ca", scalar(caFile))
	}
	return all, nil
}

func encode(n *yaml.Node) ([]byte, error) {
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(n); err != nil {
		return nil, err
	}
	return []byte(b.String()), nil
}

// duration returns a duration of the settings, or a default.
func duration(config *yaml.Node, key string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(text(config, key)); err == nil {
		return d
	}
	return otherwise
}

// drain returns the longest time of a drain.
func (s Settings) drain() time.Duration {
	config, _ := s.config() // checked before
	return duration(config, "drain-timeout", 30*time.Second)
}

// end returns how long the containers of a pod may take to end.
func (s Settings) end() time.Duration {
	config, _ := s.config() // checked before
	return max(s.drain()+duration(config, "kill-after", 5*time.Second), s.PreStopSleep)
}

// template returns what is added to a pod template.
func (s Settings) template(pod *yaml.Node) (*yaml.Node, error) {
	made, err := templateTree(string(s.Shape) + ".yaml")
	if err != nil {
		return nil, err
	}
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	if s.ConfigMap == "" && yamledit.IsNull(yamledit.Value(config, "upstream")) {
		return nil, errors.New("no control plane is known: give --upstream HOST:PORT, the key upstream in --settings, or the annotation " + prefix + "upstream")
	}
	spec := yamledit.Value(made, "spec")
	for _, c := range list(spec, "initContainers") {
		s.container(c, pod)
	}
	s.volumes(spec, config)
	rename(spec, pod)
	if s.ConfigMap == "" {
		text, err := encode(config)
		if err != nil {
			return nil, err
		}
		if len(text) > maxConfig {
			return nil, fmt.Errorf("the settings have %d KiB, and an annotation holds at most %d: put them into a ConfigMap, with --config-map", len(text)>>10, maxConfig>>10)
		}
		value := scalar(string(text))
		value.Style = yaml.LiteralStyle
		put(yamledit.Value(made, "metadata"), "annotations", mapping(settingsAnnotation, value))
	}
	return made, nil
}

// container sets what of a container depends on the settings and on the pod.
func (s Settings) container(c, pod *yaml.Node) {
	name := text(c, "name")
	image := s.Image
	resources := Resources{}
	switch {
	case name == "envoy":
		image, resources = s.EnvoyImage, s.Proxy
	case name == "holdfast" && s.Shape == EnvoyChild:
		image, resources = s.ChildImage, s.Proxy
	case name == "holdfast":
		resources = s.Agent
	}
	if image != "" {
		put(c, "image", scalar(image))
	}
	resources.apply(c)
	group := text(yamledit.Value(yamledit.Value(pod, "spec"), "securityContext"), "fsGroup")
	for i, arg := range list(c, "args") {
		args := yamledit.Value(c, "args").Content
		switch {
		case strings.HasPrefix(arg.Value, "--socket-group=") && group != "":
			arg.Value = "--socket-group=" + group
		case arg.Value == "--drain-time-s":
			args[i+1].Value = strconv.Itoa(int(math.Ceil(s.drain().Seconds())))
		case arg.Value == "--concurrency" && s.Proxy.CPULimit != "":
			args[i+1].Value = strconv.Itoa(max(1, int(math.Ceil(amount(s.Proxy.CPULimit)))))
			if amount(s.Proxy.CPULimit) == 0 {
				args[i+1].Value = "2"
			}
		}
	}
	for _, e := range list(c, "env") {
		switch {
		case text(e, "name") != "HOLDFAST_HEAP_LIMIT" || s.Proxy.MemoryLimit == "":
		case amount(s.Proxy.MemoryLimit) == 0:
			put(e, "value", scalar("0"))
		default: // the same part of the limit as in the template
			put(e, "value", scalar(strconv.FormatInt(int64(amount(s.Proxy.MemoryLimit)*384/640), 10)))
		}
	}
	if name != "holdfast" {
		return
	}
	env, mounts := yamledit.Value(c, "env"), yamledit.Value(c, "volumeMounts")
	if s.ConfigMap != "" && len(s.Upstreams) > 0 {
		env.Content = append(env.Content, flow("name", "HOLDFAST_UPSTREAM", "value", strings.Join(s.Upstreams, ",")))
	}
	if s.ConfigMap != "" && s.CAConfigMap != "" {
		env.Content = append(env.Content, flow("name", "HOLDFAST_UPSTREAM_CA", "value", caFile))
	}
	if s.CAConfigMap != "" {
		mount := flow("name", "ca", "mountPath", caDir)
		put(mount, "readOnly", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"})
		mounts.Content = append(mounts.Content, mount)
	}
}

// flow returns a mapping of texts, in one line.
func flow(pairs ...string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: yaml.FlowStyle}
	for i := 0; i+1 < len(pairs); i += 2 {
		put(n, pairs[i], scalar(pairs[i+1]))
	}
	return n
}

// apply sets the resources of a container.
func (r Resources) apply(c *yaml.Node) {
	for _, one := range []struct{ kind, resource, value string }{
		{"requests", "cpu", r.CPU}, {"requests", "memory", r.Memory}, {"limits", "cpu", r.CPULimit}, {"limits", "memory", r.MemoryLimit},
	} {
		of := yamledit.Value(yamledit.Value(c, "resources"), one.kind)
		switch {
		case one.value == "":
		case amount(one.value) == 0:
			remove(of, one.resource)
		default:
			put(of, one.resource, scalar(one.value))
		}
	}
	// A request of the shape is not more than a limit that is given, and a limit not less than a request.
	requests, limits := yamledit.Value(yamledit.Value(c, "resources"), "requests"), yamledit.Value(yamledit.Value(c, "resources"), "limits")
	for _, pair := range []struct{ resource, request, limit string }{{"cpu", r.CPU, r.CPULimit}, {"memory", r.Memory, r.MemoryLimit}} {
		request, limit := text(requests, pair.resource), text(limits, pair.resource)
		if request == "" || limit == "" || amount(request) <= amount(limit) {
			continue
		}
		if pair.request == "" {
			put(requests, pair.resource, scalar(limit))
		} else {
			put(limits, pair.resource, scalar(request))
		}
	}
}

// volumes sets what of the volumes depends on the settings.
func (s Settings) volumes(spec, config *yaml.Node) {
	if s.CAConfigMap != "" {
		volume := mapping("name", scalar("ca"))
		put(volume, "configMap", flow("name", s.CAConfigMap))
		all := yamledit.Value(spec, "volumes")
		all.Content = append(all.Content, volume)
	}
	for _, v := range list(spec, "volumes") {
		switch text(v, "name") {
		case "config":
			if s.ConfigMap != "" {
				put(yamledit.Value(v, "configMap"), "name", scalar(s.ConfigMap))
				continue
			}
			remove(v, "configMap")
			field := mapping("fieldPath", scalar("metadata.annotations['"+settingsAnnotation+"']"))
			field.Content[1].Style = yaml.DoubleQuotedStyle
			item := mapping("path", scalar(configFile))
			put(item, "fieldRef", field)
			item.Style, field.Style = yaml.FlowStyle, yaml.FlowStyle
			put(v, "downwardAPI", mapping("items", &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{item}}))
		case "token":
			audience := s.TokenAudience
			if audience == "" {
				audience = hostOf(config)
			}
			if audience != "" {
				put(yamledit.Value(list(yamledit.Value(v, "projected"), "sources")[0], "serviceAccountToken"), "audience", scalar(audience))
			}
		}
	}
}

// hostOf returns the host of the first upstream, "" if it has none.
func hostOf(config *yaml.Node) string {
	upstream := yamledit.Value(config, "upstream")
	if upstream == nil {
		return ""
	}
	first := upstream.Value
	if upstream.Kind == yaml.SequenceNode && len(upstream.Content) > 0 {
		first = upstream.Content[0].Value
	}
	for _, scheme := range []string{"dns:///", "http://", "https://"} {
		first = strings.TrimPrefix(first, scheme)
	}
	host, _, _ := strings.Cut(first, "/")
	if host == "" || strings.HasPrefix(first, "unix:") || strings.HasPrefix(first, "file:") || strings.HasPrefix(host, "[") {
		return ""
	}
	host, _, _ = strings.Cut(host, ":")
	return host
}

// rename gives the volumes that are added names which the pod does not have: its own config is not ours.
func rename(spec, pod *yaml.Node) {
	used := make(map[string]bool)
	for _, v := range list(yamledit.Value(pod, "spec"), "volumes") {
		used[text(v, "name")] = true
	}
	for _, v := range list(spec, "volumes") {
		name := text(v, "name")
		if !used[name] {
			continue
		}
		free := "holdfast-" + name
		for i := 2; used[free]; i++ {
			free = fmt.Sprintf("holdfast-%s-%d", name, i)
		}
		put(v, "name", scalar(free))
		for _, c := range list(spec, "initContainers") {
			for _, m := range list(c, "volumeMounts") {
				if text(m, "name") == name {
					put(m, "name", scalar(free))
				}
			}
		}
	}
}
