package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// feed is a config.Cache whose documents the test changes.
type feed struct {
	docs     map[config.Key]*config.Config
	handlers map[config.Kind][]func(config.Event)
}

func newFeed() *feed {
	return &feed{map[config.Key]*config.Config{}, map[config.Kind][]func(config.Event){}}
}

func (f *feed) RegisterHandler(kind config.Kind, handler func(config.Event)) {
	f.handlers[kind] = append(f.handlers[kind], handler)
}

func (f *feed) Get(key config.Key) *config.Config { return f.docs[key] }

func (f *feed) List(kind config.Kind, namespace string) (out []*config.Config) {
	for key, c := range f.docs {
		if key.Kind == kind && (namespace == "" || key.Namespace == namespace) {
			out = append(out, c)
		}
	}
	return out
}

func (f *feed) Run(context.Context) error { return nil }
func (f *feed) HasSynced() bool           { return true }

func (f *feed) apply(docs ...*config.Config) {
	for _, c := range docs {
		e := config.Event{Old: f.docs[c.Key], New: c}
		f.docs[c.Key] = c
		f.call(e)
	}
}

func (f *feed) remove(docs ...*config.Config) {
	for _, c := range docs {
		e := config.Event{Old: f.docs[c.Key]}
		delete(f.docs, c.Key)
		f.call(e)
	}
}

func (f *feed) call(e config.Event) {
	for _, handler := range f.handlers[e.Key().Kind] {
		handler(e)
	}
}

// doc returns a document "namespace/name" with a spec in YAML. Labels are "key=value"; a label whose
// key begins with "@" is an annotation.
func doc(kind config.Kind, name, spec string, labels ...string) *config.Config {
	namespace, name, ok := strings.Cut(name, "/")
	if !ok {
		namespace, name = "", namespace
	}
	c := &config.Config{Meta: config.Meta{
		Key: config.Key{Kind: kind, Namespace: namespace, Name: name}, Created: time.Unix(0, 0),
		Labels: map[string]string{}, Annotations: map[string]string{},
	}}
	for _, label := range labels {
		k, v, _ := strings.Cut(label, "=")
		if k, isAnnotation := strings.CutPrefix(k, "@"); isAnnotation {
			c.Annotations[k] = v
		} else {
			c.Labels[k] = v
		}
	}
	var err error
	switch c.Spec = newSpec(kind); message := c.Spec.(type) {
	case proto.Message:
		var json []byte
		if json, err = yaml.YAMLToJSON([]byte(spec)); err == nil {
			err = protojson.Unmarshal(json, message)
		}
	default:
		err = yaml.UnmarshalStrict([]byte(spec), message)
	}
	if err != nil {
		panic(fmt.Sprintf("%s: %v", c.Key, err))
	}
	return c
}

func newSpec(kind config.Kind) any {
	switch kind {
	case config.ServiceEntry:
		return &networking.ServiceEntry{}
	case config.WorkloadEntry:
		return &networking.WorkloadEntry{}
	case config.Service:
		return &corev1.Service{}
	case config.EndpointSlice:
		return &discoveryv1.EndpointSlice{}
	case config.Pod:
		return &corev1.Pod{}
	case config.Node:
		return &corev1.Node{}
	case config.MeshConfig:
		return &meshv1alpha1.MeshConfig{}
	default:
		return &corev1.Namespace{}
	}
}

// log records what a registry tells.
type log struct{ lines []string }

func (l *log) options(shards *Shards) Options {
	return Options{
		Cluster: "c1", Shards: shards,
		OnService: func(e ServiceEvent) {
			what := "changed"
			switch {
			case e.Old == nil:
				what = "added"
			case e.New == nil:
				what = "removed"
			}
			l.lines = append(l.lines, fmt.Sprintf("%s %s", e.Key(), what))
		},
		OnEndpoints: func(key Key, change Change) {
			what := map[Change]string{EndpointsChanged: "endpoints", FullPush: "full"}[change]
			l.lines = append(l.lines, fmt.Sprintf("%s %s", key, what))
		},
		Report: func(_ *config.Config, err error) { l.lines = append(l.lines, err.Error()) },
	}
}

func (l *log) want(t *testing.T, lines ...string) {
	t.Helper()
	if !slices.Equal(l.lines, lines) {
		t.Errorf("told:\n\t%s\nwant:\n\t%s", strings.Join(l.lines, "\n\t"), strings.Join(lines, "\n\t"))
	}
	l.lines = nil
}

// endpoints returns the endpoints of a service as text, each like "http 10.0.0.1:80 v1".
func endpoints(shards *Shards, host string, show func(*Endpoint) string) []string {
	namespace, host, _ := strings.Cut(host, "/")
	out := []string{}
	for _, e := range shards.Endpoints(Key{Hostname: Hostname(host), Namespace: namespace}) {
		text := fmt.Sprintf("%s %s:%d", e.PortName, e.Address, e.Port)
		if show != nil {
			text += " " + show(e)
		}
		out = append(out, text)
	}
	return out
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n\t%s\nwant:\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func sortedKeys(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
