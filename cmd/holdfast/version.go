package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// apiModule is the module of Envoy's API.
const apiModule = "github.com/envoyproxy/go-control-plane/envoy"

const versionLong = `Show the version of holdfast, of the Go that built it, and of Envoy's API (go-control-plane).
Resources of types that this API does not contain are served as well.`

func newVersion() *command {
	c := newCommand("version", "show versions", versionLong, "\nholdfast version\nholdfast version -o json")
	var asJSON bool
	c.section("Output").VarP(either(&asJSON, "text", "json"), "output", "o", "output format")
	c.run = func(_ context.Context, warnings []string) error {
		warn(c, warnings)
		return printVersion(c.OutOrStdout(), asJSON)
	}
	return c
}

// printVersion writes the versions, as text or json.
func printVersion(w io.Writer, asJSON bool) error {
	v := struct {
		Version  string `json:"version"`
		Go       string `json:"go"`
		EnvoyAPI string `json:"envoy_api"`
	}{version, runtime.Version(), apiVersion()}
	if asJSON {
		return failed(writeJSON(w, v))
	}
	_, err := fmt.Fprintf(w, "holdfast %s\ngo       %s\nEnvoy API (go-control-plane) %s\n", v.Version, v.Go, v.EnvoyAPI)
	return failed(err)
}

// versionOf returns the version that the linker set, or else that of the module, as `go install
// …@v1.2.3` sets it.
func versionOf(linked string, build *debug.BuildInfo) string {
	if of := build.Main.Version; linked == "dev" && of != "" && of != "(devel)" {
		return of
	}
	return linked
}

// apiVersion returns the version of the module of Envoy's API; "unknown" in a build without module
// information, such as a test.
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
