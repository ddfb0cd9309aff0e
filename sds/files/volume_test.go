package files

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// publish exchanges the content of a volume as kubelet does: a new directory, a
// new link to it that is renamed over "..data", and the old directory goes.
func (tr *tree) publish(volume string, generation int, contents map[string]string) {
	tr.Helper()
	now := fmt.Sprintf("..2026_%d", generation)
	for name, content := range contents {
		tr.write(volume+"/"+now+"/"+name, content)
	}
	former, _ := os.Readlink(tr.at(volume + "/..data"))
	tr.link(volume+"/..data_tmp", now)
	tr.rename(volume+"/..data_tmp", volume+"/..data")
	if former != "" {
		tr.remove(volume + "/" + former)
		return
	}
	for name := range contents {
		tr.link(volume+"/"+name, "..data/"+name)
	}
}

func TestKubernetesVolumeIsReadWhole200ExchangesLong(t *testing.T) {
	const exchanges, size = 200, 64 << 10
	contents := func(generation int) map[string]string {
		return map[string]string{"tls.crt": strings.Repeat(string(rune('a'+generation%26)), size)}
	}
	tr := newTree(t)
	tr.publish("v", 0, contents(0))
	d := tr.allow("v")

	var reads atomic.Int64
	var done atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !done.Load() {
			data, err := d.Read(tr.at("v/tls.crt"))
			reads.Add(1)
			switch {
			case err != nil:
				t.Error(err)
			case len(data) != size || strings.Trim(string(data), string(data[0])) != "":
				t.Errorf("a mixture: %d bytes, %q to %q", len(data), data[0], data[len(data)-1])
			}
		}
	}()
	for generation := 1; generation <= exchanges; generation++ {
		tr.publish("v", generation, contents(generation))
		// The pause between replacements varies, so that they hit every step of a read.
		for before := reads.Load(); reads.Load() == before; {
			runtime.Gosched()
		}
	}
	done.Store(true)
	<-ended
	if data, err := d.Read(tr.at("v/tls.crt")); err != nil || string(data) != contents(exchanges)["tls.crt"] {
		t.Errorf("the last content is not read: %v", err)
	}
}
