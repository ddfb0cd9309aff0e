package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

func dumpOf(ctx context.Context, addr string) (json.RawMessage, error) {
	if addr == "" {
		return nil, errors.New("the address of its admin interface is not known: give --envoy-admin")
	}
	return envoy.NewAdmin(addr).ConfigDump(ctx)
}

// contents has what an Envoy has from xDS, as canonical JSON, by short name of the type and by name.
type contents map[string]map[string]string

func (c contents) counts() map[string]int {
	out := make(map[string]int)
	for kind, all := range c {
		out[kind] = len(all)
	}
	return out
}

// sections are the parts of a config_dump that are compared: the list in which the entries are, the content of an
// entry, and its name.
var sections = []struct{ kind, list, content, name string }{
	{"CDS", "dynamic_active_clusters", "cluster", "cluster.name"},
	{"EDS", "dynamic_endpoint_configs", "endpoint_config", "endpoint_config.cluster_name"},
	{"LDS", "dynamic_listeners", "active_state.listener", "name"},
	{"RDS", "dynamic_route_configs", "route_config", "route_config.name"},
	{"SRDS", "dynamic_scoped_route_configs", "scoped_route_configs", "name"},
	{"SDS", "dynamic_active_secrets", "secret", "name"},
	{"ECDS", "ecds_filters", "ecds_filter", "ecds_filter.name"},
}

// parse reads a config_dump. Of Secrets it takes the names, because Envoy redacts them.
func parse(dump json.RawMessage) (contents, error) {
	var top struct {
		Configs []map[string]json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(dump, &top); err != nil {
		return nil, fmt.Errorf("config_dump: %w", err)
	}
	out := make(contents)
	for _, section := range sections {
		for _, config := range top.Configs {
			var entries []any
			if list := config[section.list]; list == nil || json.Unmarshal(list, &entries) != nil {
				continue
			}
			for _, entry := range entries {
				content, name := at(entry, section.content), fmt.Sprint(at(entry, section.name))
				if content == nil {
					continue // it warms
				}
				if out[section.kind] == nil {
					out[section.kind] = make(map[string]string)
				}
				text := ""
				if section.kind != "SDS" {
					walk(content, func(object map[string]any) { delete(object, "health_status") }) // what checks have found
					canonical, err := json.Marshal(content)
					if err != nil {
						return nil, err
					}
					text = string(canonical)
				}
				out[section.kind][name] = text
			}
		}
	}
	return out, nil
}

// at returns what is at a path of names in a tree of JSON; nil if nothing is.
func at(tree any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		object, ok := tree.(map[string]any)
		if !ok {
			return nil
		}
		tree = object[name]
	}
	return tree
}

// compare returns what the second Envoy lacks, has otherwise, or has in addition.
func compare(want, got contents) []Loss {
	out := []Loss{}
	all := want.counts()
	maps.Copy(all, got.counts())
	for _, kind := range slices.SortedFunc(maps.Keys(all), xds.CompareShort) {
		for _, name := range slices.Sorted(maps.Keys(want[kind])) {
			text, there := got[kind][name]
			switch {
			case !there:
				out = append(out, Loss{kind + " " + name, "the second Envoy does not have it, or still waits for something that it needs"})
			case text != want[kind][name]:
				out = append(out, Loss{kind + " " + name, "the second Envoy has another content"})
			}
		}
		for _, name := range slices.Sorted(maps.Keys(got[kind])) {
			if _, there := want[kind][name]; !there {
				out = append(out, Loss{kind + " " + name, "the second Envoy has it, and the running one does not"})
			}
		}
	}
	return out
}
