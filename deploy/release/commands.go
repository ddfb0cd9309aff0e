package main

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// repository is where the source is, for labels and package URLs.
const repository = "github.com/holdfast-xds/holdfast"

// license is the SPDX identifier of holdfast's own license.
const license = "Apache-2.0"

// allCommands are the programs of a release; each is the package cmd/NAME.
var allCommands = []string{"holdfast", "holdfast-mesh", "holdfast-injector"}

// platform is an operating system and an architecture, by Go's names.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// dashed is the platform in names of files.
func (p platform) dashed() string { return p.os + "-" + p.arch }

// allPlatforms are those of a release.
var allPlatforms = []platform{{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}}

// parsePlatforms reads a list such as linux/amd64,darwin/arm64; empty means all.
func parsePlatforms(list string) ([]platform, error) {
	if list == "" {
		return allPlatforms, nil
	}
	var chosen []platform
	for one := range strings.SplitSeq(list, ",") {
		os, arch, _ := strings.Cut(strings.TrimSpace(one), "/")
		p := platform{os, arch}
		if !slices.Contains(allPlatforms, p) {
			return nil, fmt.Errorf("-platforms %q: %q is none of %v", list, one, allPlatforms)
		}
		if !slices.Contains(chosen, p) {
			chosen = append(chosen, p)
		}
	}
	slices.SortFunc(chosen, func(a, b platform) int { return strings.Compare(a.String(), b.String()) })
	return chosen, nil
}

// linuxOf returns the platforms with Linux.
func linuxOf(all []platform) []platform {
	return slices.DeleteFunc(slices.Clone(all), func(p platform) bool { return p.os != "linux" })
}

// modes of files in everything that is made.
const (
	regular    fs.FileMode = 0o644
	executable fs.FileMode = 0o755
	directory  fs.FileMode = 0o755
)
