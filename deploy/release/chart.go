package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var (
	chartName       = regexp.MustCompile(`(?m)^name: *["']?([\w-]+)["']?[ \t]*$`)
	chartVersion    = regexp.MustCompile(`(?m)^version:.*$`)
	chartAppVersion = regexp.MustCompile(`(?m)^appVersion: *["']?([^"'\s]*)["']?[ \t]*$`)
	imageTag        = regexp.MustCompile(`(?m)^(\s*tag:) *["']?([^"'\s#]*)["']?`)
)

// chart packs deploy/chart of a source tree as Helm does: NAME-VERSION.tgz with one folder. Its version and appVersion are those
// of the release, and so is each tag of values.yaml that is empty or the appVersion of the tree. It returns "" if there is no
// chart.
func chart(source, version string, at time.Time) (file string, data []byte, err error) {
	dir := filepath.Join(source, "deploy", "chart")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	entries, err := entriesOf(dir)
	if err != nil {
		return "", nil, err
	}
	name, appVersion := "", ""
	for i, e := range entries {
		if e.name != "Chart.yaml" {
			continue
		}
		n, a := chartName.FindSubmatch(e.data), chartAppVersion.FindSubmatch(e.data)
		if n == nil || a == nil || !chartVersion.Match(e.data) {
			return "", nil, errors.New("deploy/chart/Chart.yaml: want a line each with name, version and appVersion")
		}
		name, appVersion = string(n[1]), string(a[1])
		text := chartVersion.ReplaceAll(e.data, []byte("version: "+strings.TrimPrefix(version, "v")))
		entries[i].data = chartAppVersion.ReplaceAll(text, []byte(`appVersion: "`+version+`"`))
	}
	if name == "" {
		return "", nil, errors.New("deploy/chart has no Chart.yaml")
	}
	for i, e := range entries {
		if e.name == "values.yaml" {
			entries[i].data = withTags(e.data, appVersion, version)
		}
	}
	data, err = tarGzip(below(name, entries), at)
	return fmt.Sprintf("%s-%s.tgz", name, strings.TrimPrefix(version, "v")), data, err
}

// withTags replaces the tags of images that are empty or old; those of other images stay.
func withTags(values []byte, old, version string) []byte {
	return imageTag.ReplaceAllFunc(values, func(line []byte) []byte {
		m := imageTag.FindSubmatch(line)
		if tag := string(m[2]); tag != "" && tag != old {
			return line
		}
		return append(append([]byte(nil), m[1]...), []byte(` "`+version+`"`)...)
	})
}
