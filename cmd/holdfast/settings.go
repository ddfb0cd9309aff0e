package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/environ"
)

const (
	configFlag = "config"
	envPrefix  = environ.Prefix
)

// envName returns the variable of a flag.
func envName(flag string) string { return cli.Variable(envPrefix, flag) }

// applySettings sets every flag that the command line did not set from the environment or else from the file of --config. keys
// are the flags of all commands. See cli.Settings.
func applySettings(flags *pflag.FlagSet, environ []string, keys map[string]bool) (warnings []string, err error) {
	settings := cli.Settings{Program: "holdfast", Flag: configFlag, Environ: environ, Keys: keys, Foreign: ofOthers}
	return settings.Apply(flags)
}

// ofOthers reports whether a variable with the prefix of holdfast's is metadata of the node, or of holdfast-mesh or holdfast-injector.
func ofOthers(name string) bool {
	return strings.HasPrefix(name, "META_") || strings.HasPrefix(name, "MESH_") || strings.HasPrefix(name, "INJECTOR_")
}
