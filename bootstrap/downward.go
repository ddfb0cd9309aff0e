package bootstrap

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// ReadDownward reads the labels or annotations from a file of Kubernetes' downward API. Errors name file and line.
func ReadDownward(path string) (map[string]string, error) {
	data, err := userfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	values, err := parseDownward(string(data))
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %s: %w", path, err)
	}
	return values, nil
}

// parseDownward parses lines of the form key="value" with Go's quoting.
func parseDownward(text string) (map[string]string, error) {
	values := make(map[string]string)
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, quoted, found := strings.Cut(line, "=")
		value, err := strconv.Unquote(strings.TrimSpace(quoted))
		if !found || key == "" || err != nil {
			return nil, fmt.Errorf(`line %d: want key="value", as the downward API writes it`, i+1)
		}
		if _, twice := values[key]; twice {
			return nil, fmt.Errorf("line %d: %q is there twice", i+1, key)
		}
		values[key] = value
	}
	return values, nil
}
