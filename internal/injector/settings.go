package injector

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/inject"
)

// Settings are what pods are injected with: those of all namespaces, and those of some.
type Settings struct {
	general    inject.Settings
	namespaces map[string]inject.Settings
}

// Of returns the settings for pods of a namespace.
func (s *Settings) Of(namespace string) inject.Settings {
	if own, ok := s.namespaces[namespace]; ok {
		return own
	}
	return s.general
}

// values are the keys of the file: the flags of `holdfast inject`, and settings instead of the file of --settings.
type values struct {
	Shape            string         `yaml:"shape"`
	Upstream         texts          `yaml:"upstream"`
	TokenAudience    string         `yaml:"token-audience"`
	ConfigMap        string         `yaml:"config-map"`
	CAConfigMap      string         `yaml:"ca-config-map"`
	Image            string         `yaml:"image"`
	EnvoyImage       string         `yaml:"envoy-image"`
	ChildImage       string         `yaml:"child-image"`
	PreStopSleep     time.Duration  `yaml:"prestop-sleep"`
	ProxyCPU         string         `yaml:"proxy-cpu"`
	ProxyMemory      string         `yaml:"proxy-memory"`
	ProxyCPULimit    string         `yaml:"proxy-cpu-limit"`
	ProxyMemoryLimit string         `yaml:"proxy-memory-limit"`
	AgentCPU         string         `yaml:"agent-cpu"`
	AgentMemory      string         `yaml:"agent-memory"`
	AgentCPULimit    string         `yaml:"agent-cpu-limit"`
	AgentMemoryLimit string         `yaml:"agent-memory-limit"`
	Settings         map[string]any `yaml:"settings"`
}

// texts is a list of texts; a single one may be written without the list.
type texts []string

func (t *texts) UnmarshalYAML(n *yaml.Node) error {
	*t = nil
	if n.Kind == yaml.ScalarNode {
		var one string
		if err := n.Decode(&one); err != nil {
			return err
		}
		if one != "" {
			*t = texts{one}
		}
		return nil
	}
	return n.Decode((*[]string)(t))
}

// ParseSettings reads the file of --settings. Keys that are missing have the values that the flags of `holdfast inject`
// have; those of a namespace take the place of the general ones, and the keys of its settings that of the general
// settings' keys. The settings are checked for every shape and namespace: an injection with them fails only for
// reasons of the pod.
func ParseSettings(text []byte) (*Settings, error) {
	var file struct {
		values     `yaml:",inline"`
		Namespaces map[string]yaml.Node `yaml:"namespaces"`
	}
	file.PreStopSleep = inject.NewSettings().PreStopSleep
	if err := strict(text, &file); err != nil {
		return nil, err
	}
	s := &Settings{namespaces: make(map[string]inject.Settings)}
	var err error
	if s.general, err = file.inject(); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(file.Namespaces)) {
		node := file.Namespaces[name]
		own, err := file.of(&node)
		if err == nil {
			s.namespaces[name], err = own.inject()
		}
		if err != nil {
			return nil, fmt.Errorf("namespaces: %s: %w", name, err)
		}
	}
	return s, nil
}

// of returns the values of a namespace.
func (v values) of(node *yaml.Node) (values, error) {
	text, err := yaml.Marshal(node)
	if err != nil {
		return v, err
	}
	var own values
	if err := strict(text, &own); err != nil {
		return v, fmt.Errorf("(lines counted from its first key) %w", err)
	}
	v.Settings = maps.Clone(v.Settings) // which decoding merges into
	switch {
	case own.ConfigMap != "" && own.Settings == nil:
		v.Settings = nil // the ConfigMap has all settings
	case own.Settings != nil && own.ConfigMap == "":
		v.ConfigMap = ""
	}
	return v, strict(text, &v)
}

func strict(text []byte, into any) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("it has more than one document: want one")
	}
	return nil
}

// inject returns the values as settings of injections, checked.
func (v values) inject() (inject.Settings, error) {
	s := inject.NewSettings()
	s.Shape, s.Upstreams, s.TokenAudience = inject.Shape(v.Shape), v.Upstream, v.TokenAudience
	s.ConfigMap, s.CAConfigMap = v.ConfigMap, v.CAConfigMap
	s.Image, s.EnvoyImage, s.ChildImage = v.Image, v.EnvoyImage, v.ChildImage
	s.PreStopSleep = v.PreStopSleep
	s.Proxy = inject.Resources{CPU: v.ProxyCPU, Memory: v.ProxyMemory, CPULimit: v.ProxyCPULimit, MemoryLimit: v.ProxyMemoryLimit}
	s.Agent = inject.Resources{CPU: v.AgentCPU, Memory: v.AgentMemory, CPULimit: v.AgentCPULimit, MemoryLimit: v.AgentMemoryLimit}
	s.Validate = inject.KnownKeys
	if len(v.Settings) > 0 {
		text, err := yaml.Marshal(v.Settings)
		if err != nil {
			return s, err
		}
		s.Config = text
	}
	if slices.Contains(v.Upstream, "") {
		return s, errors.New("upstream: an address is empty")
	}
	return s, s.Check()
}
