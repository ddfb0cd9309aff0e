package inject

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// Injected reports whether a Pod, given as JSON, has been injected. The error is that of a status that no injection wrote.
func Injected(podJSON []byte) (bool, error) {
	d, err := yamledit.Parse(podJSON)
	if err != nil {
		return false, err
	}
	if d.Root == nil || d.Root.Kind != yaml.MappingNode {
		return false, errors.New("want a Pod as JSON")
	}
	s, err := readStatus(d.Root)
	return s != nil, err
}
