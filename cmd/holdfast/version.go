package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// apiModule is the module of Envoy's API.
const apiModule = "github.com/envoyproxy/go-control-plane/envoy"

const versionLong = `Show the version of holdfast, of the Go that built it, and of the Envoy API that it
knows by name (go-control-plane). Resources of types beyond that API pass through
as well.`

func newVersion() *command {
	c := newCommand("version", "show the version", versionLong, "\nholdfast version\nholdfast version -o json")
	output := oneOf("text", "json")
	c.section("Output").VarP(output, "output", "o", "for a person or for a program")
	c.run = func(_ context.Context, warnings []string) error {
		warn(c, warnings)
		v := struct {
			Version  string `json:"version"`
			Go       string `json:"go"`
			EnvoyAPI string `json:"envoy_api"`
		}{version, runtime.Version(), apiVersion()}
		if output.value == "json" {
			return failed(writeJSON(c.OutOrStdout(), v))
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "holdfast %s\ngo       %s\nEnvoy API (go-control-plane) %s\n", v.Version, v.Go, v.EnvoyAPI)
		return failed(err)
	}
	return c
}

// apiVersion is that of the module which was linked; "unknown" in a build without
// module information, such as a test's.
func apiVersion() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if dep.Path == apiModule {
				return dep.Version
			}
		}
	}
	return "unknown"
}
