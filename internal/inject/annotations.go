package inject

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/nearest"
	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// The annotations that an injection writes.
const (
	prefix             = "holdfast.dev/"
	statusAnnotation   = prefix + "status"
	settingsAnnotation = prefix + "settings"
	shapeLabel         = prefix + "shape"
)

// annotation is one that a user may give a pod.
type annotation struct {
	name string // below prefix
	set  func(s *Settings, value string) error
}

var annotations = []annotation{
	{"inject", func(_ *Settings, value string) error {
		switch value {
		case "true":
			return nil
		case "false":
			return ErrLeftAlone
		}
		return errors.New(`want "true" or "false"`)
	}},
	{"shape", func(s *Settings, value string) error {
		s.Shape = Shape(value)
		return nil
	}},
	{"upstream", func(s *Settings, value string) error {
		s.Upstreams = nil
		for one := range strings.SplitSeq(value, ",") {
			if one = strings.TrimSpace(one); one == "" {
				return errors.New("want addresses such as xds.example:443, with commas between them")
			}
			s.Upstreams = append(s.Upstreams, one)
		}
		return nil
	}},
	{"token-audience", func(s *Settings, value string) error {
		if s.TokenAudience = value; value == "" {
			return errors.New("is empty")
		}
		return nil
	}},
	{"config-map", func(s *Settings, value string) error {
		if s.ConfigMap, s.Config = value, nil; value == "" {
			return errors.New("is empty")
		}
		return nil
	}},
	{"ca-config-map", func(s *Settings, value string) error {
		if s.CAConfigMap = value; value == "" {
			return errors.New("is empty")
		}
		return nil
	}},
	{"prestop-sleep", func(s *Settings, value string) (err error) {
		if s.PreStopSleep, err = time.ParseDuration(value); err != nil {
			return errors.New("want a duration such as 10s, or 0s for none")
		}
		return nil
	}},
	{"proxy-cpu", func(s *Settings, value string) error { return resource(&s.Proxy.CPU, value) }},
	{"proxy-memory", func(s *Settings, value string) error { return resource(&s.Proxy.Memory, value) }},
	{"proxy-cpu-limit", func(s *Settings, value string) error { return resource(&s.Proxy.CPULimit, value) }},
	{"proxy-memory-limit", func(s *Settings, value string) error { return resource(&s.Proxy.MemoryLimit, value) }},
	{"agent-cpu", func(s *Settings, value string) error { return resource(&s.Agent.CPU, value) }},
	{"agent-memory", func(s *Settings, value string) error { return resource(&s.Agent.Memory, value) }},
	{"agent-cpu-limit", func(s *Settings, value string) error { return resource(&s.Agent.CPULimit, value) }},
	{"agent-memory-limit", func(s *Settings, value string) error { return resource(&s.Agent.MemoryLimit, value) }},
}

func resource(to *string, value string) error {
	if *to = value; !quantity.MatchString(value) {
		return errors.New("want a quantity such as 100m or 256Mi, or 0 for none")
	}
	return nil
}

// Annotations returns the annotations that a user may give a pod template.
func Annotations() (names []string) {
	for _, a := range annotations {
		names = append(names, prefix+a.name)
	}
	return names
}

// of returns the settings for a pod: those of its annotations take the place of s.
func (s Settings) of(template *yaml.Node) (Settings, []string, error) {
	metadata := yamledit.Value(template, "metadata")
	var given []string
	left := error(nil)
	for _, pair := range keys(yamledit.Value(metadata, "annotations")) {
		key, value := pair.Content[0].Value, yamledit.Target(pair.Content[1])
		name, ours := strings.CutPrefix(key, prefix)
		if !ours {
			continue
		}
		i := slices.IndexFunc(annotations, func(a annotation) bool { return a.name == name })
		switch {
		case key == settingsAnnotation:
			return s, nil, fmt.Errorf("its annotation %s is what `holdfast inject` writes: remove it, and give the settings by --settings", key)
		case i < 0:
			return s, nil, fmt.Errorf("its annotation %s is not known%s: holdfast knows %s", key, suggestion(name), strings.Join(Annotations(), ", "))
		case value == nil || value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str":
			return s, nil, fmt.Errorf("its annotation %s is not a text, which Kubernetes rejects: put the value into quotes", key)
		}
		if len(value.Value) > maxAnnotation {
			return s, nil, fmt.Errorf("its annotation %s has %d KiB: want at most %d KiB", key, len(value.Value)>>10, maxAnnotation>>10)
		}
		given = append(given, key)
		if err := annotations[i].set(&s, value.Value); errors.Is(err, ErrLeftAlone) {
			left = err
		} else if err != nil {
			return s, nil, fmt.Errorf("its annotation %s is %q: %w", key, value.Value, err)
		}
	}
	if left != nil {
		return s, nil, left
	}
	if isText(yamledit.Value(metadata, "labels"), prefix+"inject", "false") {
		return s, nil, ErrLeftAlone
	}
	where := ""
	if len(given) > 0 {
		where = "its annotations (" + strings.Join(given, ", ") + "): "
	} else {
		s.Validate = nil // Check has called it
	}
	s, err := s.checked(where)
	var warnings []string
	if s.Shape == EnvoyChild && s.Agent != (Resources{}) {
		warnings = append(warnings, "the resources of the agent have no effect with the shape envoy-child: those of the proxy are for both")
	}
	return s, warnings, err
}

// suggestion returns ", did you mean …?" for an unknown annotation.
func suggestion(name string) string {
	known := make([]string, 0, len(annotations))
	for _, a := range annotations {
		known = append(known, a.name)
	}
	return nearest.Question(prefix, name, known)
}
