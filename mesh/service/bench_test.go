package service

import (
	"fmt"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// A Pod of a service with a thousand Pods changes.
func BenchmarkAPodOfALargeService(b *testing.B) {
	f := newFeed()
	newKubernetes(f)
	f.apply(reviewsService("{spec: {selector: {app: x}, ports: [{name: http, port: 80}]}}"))
	name := func(i int) string { return fmt.Sprintf("default/p%d", i) }
	for i := range 1000 {
		f.apply(pod(name(i), fmt.Sprintf("10.0.%d.%d", i/250, i%250), "app=x"))
	}
	versions := [...]*config.Config{pod(name(1), "10.1.0.1", "app=x"), pod(name(1), "10.1.0.2", "app=x")}
	for i := 0; b.Loop(); i++ {
		f.apply(versions[i%2])
	}
}
