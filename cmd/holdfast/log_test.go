package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestDurationsAndListsAreReadableInTheLogAsJSON(t *testing.T) {
	var out bytes.Buffer
	flags := logFlags{level: "info", json: true}
	flags.logger(&out, nil).Info("tried", "retry_in", 1500*time.Millisecond, "uids", []uint32{0, 1337})
	if !strings.Contains(out.String(), `"retry_in":"1.5s","uids":[0,1337]}`) {
		t.Error(out.String())
	}
}
