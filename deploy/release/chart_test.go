package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
)

func TestTheChartIsOfTheVersion(t *testing.T) {
	source := t.TempDir()
	if file, _, err := chart(source, "v0.1.0", someTime); file != "" || err != nil {
		t.Errorf("without a chart: %q, %v", file, err)
	}
	for name, text := range map[string]string{
		"Chart.yaml":       "apiVersion: v2\nname: holdfast\nversion: 0.0.0\nappVersion: \"v0.0.0\"\n",
		"values.yaml":      "image:\n  tag: \"\" # of the chart\nold:\n  tag: v0.0.0\nenvoy:\n  tag: distroless-v1.40.0\n",
		"templates/x.yaml": "tag: \"\"\n",
	} {
		if err := put(source, "deploy/chart/"+name, []byte(text), regular); err != nil {
			t.Fatal(err)
		}
	}
	file, data, err := chart(source, "v0.1.0-rc.1", someTime)
	if err != nil || file != "holdfast-0.1.0-rc.1.tgz" {
		t.Fatalf("%q, %v", file, err)
	}
	zipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(text)
	}
	for name, want := range map[string]string{
		"holdfast/Chart.yaml":       "apiVersion: v2\nname: holdfast\nversion: 0.1.0-rc.1\nappVersion: \"v0.1.0-rc.1\"\n",
		"holdfast/values.yaml":      "image:\n  tag: \"v0.1.0-rc.1\" # of the chart\nold:\n  tag: \"v0.1.0-rc.1\"\nenvoy:\n  tag: distroless-v1.40.0\n",
		"holdfast/templates/x.yaml": "tag: \"\"\n",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if err := put(source, "deploy/chart/Chart.yaml", []byte("name: holdfast\n"), regular); err != nil {
		t.Fatal(err)
	}
	if _, _, err := chart(source, "v0.1.0", someTime); err == nil || !strings.Contains(err.Error(), "appVersion") {
		t.Errorf("a chart without versions: %v", err)
	}
}
