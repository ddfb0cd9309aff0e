package controlplane

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// dump returns what an Envoy has from its control plane: the body of each resource, by "cluster NAME", "endpoints NAME",
// "listener NAME" and "route NAME", without the versions and times that Envoy notes beside it. What is not active has its
// state before that: "warming cluster NAME".
func dump(e *testbed.Envoy) (map[string]string, error) {
	status, text, err := testbed.Get("http://" + e.Admin + "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("config_dump: %d %s", status, text)
	}
	var whole struct {
		Configs []struct {
			Active    []struct{ Cluster body } `json:"dynamic_active_clusters"`
			Warming   []struct{ Cluster body } `json:"dynamic_warming_clusters"`
			Listeners []struct {
				Name    string
				Active  *struct{ Listener body } `json:"active_state"`
				Warming *struct{ Listener body } `json:"warming_state"`
				Error   json.RawMessage          `json:"error_state"`
			} `json:"dynamic_listeners"`
			Routes []struct {
				Config body `json:"route_config"`
			} `json:"dynamic_route_configs"`
			Endpoints []struct {
				Config body `json:"endpoint_config"`
			} `json:"dynamic_endpoint_configs"`
		}
	}
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		return nil, fmt.Errorf("config_dump: %w", err)
	}
	out := make(map[string]string)
	for _, c := range whole.Configs {
		for _, x := range c.Active {
			out["cluster "+x.Cluster.text("name")] = x.Cluster.whole()
		}
		for _, x := range c.Warming {
			out["warming cluster "+x.Cluster.text("name")] = x.Cluster.whole()
		}
		for _, x := range c.Routes {
			out["route "+x.Config.text("name")] = x.Config.whole()
		}
		for _, x := range c.Endpoints {
			out["endpoints "+x.Config.text("cluster_name")] = x.Config.whole()
		}
		for _, x := range c.Listeners {
			if x.Active != nil {
				out["listener "+x.Name] = x.Active.Listener.whole()
			}
			if x.Warming != nil {
				out["warming listener "+x.Name] = x.Warming.Listener.whole()
			}
			if x.Error != nil {
				out["failed listener "+x.Name] = string(x.Error)
			}
		}
	}
	return out, nil
}

// body is a resource.
type body map[string]any

func (b body) text(field string) string {
	s, _ := b[field].(string)
	return s
}

// whole returns the resource as JSON, with its fields in one order.
func (b body) whole() string {
	out, err := json.Marshal(b)
	if err != nil {
		panic(err) // it came from JSON
	}
	return string(out)
}

// has returns an error unless an Envoy has resources of these names and no others.
func has(e *testbed.Envoy, want []string) (map[string]string, error) {
	got, err := dump(e)
	if err != nil {
		return nil, err
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		return nil, fmt.Errorf("Envoy has\n%s\nwant\n%s", strings.Join(names, "\n"), strings.Join(want, "\n"))
	}
	return got, nil
}

// different says what two dumps do not have in common, "" if nothing.
func different(got, want map[string]string) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[name]; !ok {
			fmt.Fprintf(&out, "%s is missing\n", name)
		} else if got[name] != want[name] {
			fmt.Fprintf(&out, "%s is\n%s\nwant\n%s\n", name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			fmt.Fprintf(&out, "%s is too many\n", name)
		}
	}
	return out.String()
}
