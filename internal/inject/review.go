package inject

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// maxPodValues limits the values of a Pod that an injection reads, or that stand beside them: containers, volumes, ports,
// labels and so on. What is in other fields (arguments, variables, probes) is not counted. Whoever may create pods decides
// what is in one, and a container takes about twelve kilobytes until the patch is made.
const maxPodValues = 5_000

// podShape is what an injection reads of a Pod that has not been injected. A test compares the patches with those that are
// made of whole pods.
func podShape() *yamledit.Shape {
	type keys = map[string]*yamledit.Shape
	value := &yamledit.Shape{} // a scalar, or the keys of a mapping
	values := &yamledit.Shape{Rest: value}
	list := func(of keys) *yamledit.Shape { return &yamledit.Shape{Rest: &yamledit.Shape{Keys: of}} }
	containers := list(keys{
		"name":      value,
		"ports":     list(keys{"containerPort": value, "protocol": value}),
		"lifecycle": {Keys: keys{"preStop": yamledit.Whole()}},
	})
	expressions := list(keys{"key": value, "operator": value, "values": values})
	return &yamledit.Shape{Keys: keys{
		"apiVersion": value, "kind": value,
		"metadata": {Keys: keys{
			"name": value, "generateName": value, "namespace": value, "labels": values, "annotations": values,
			"ownerReferences": list(keys{"kind": value, "name": value, "controller": value}),
		}},
		"spec": {Keys: keys{
			"containers": containers, "initContainers": containers, "ephemeralContainers": containers, "volumes": list(keys{"name": value}),
			"hostNetwork": value, "restartPolicy": value, "terminationGracePeriodSeconds": value,
			"securityContext": {Keys: keys{"fsGroup": value}}, "os": {Keys: keys{"name": value}}, "nodeSelector": values,
			"affinity": {Keys: keys{"nodeAffinity": {Keys: keys{"requiredDuringSchedulingIgnoredDuringExecution": {Keys: keys{
				"nodeSelectorTerms": list(keys{"matchExpressions": expressions})}}}}}},
		}},
	}}
}

// injectedShape is podShape for a Pod that was injected: what was added is compared with what is to be added.
func injectedShape() *yamledit.Shape {
	s := podShape()
	spec := s.Keys["spec"].Keys
	spec["initContainers"], spec["volumes"] = yamledit.Whole(), yamledit.Whole()
	return s
}

// Review is a Pod, given as JSON, that is about to be created. As much of it is in memory as an injection reads, so that
// a large one costs little more than its bytes.
type Review struct {
	root     *yaml.Node
	injected bool
}

// NewReview returns an error for what is no Pod, for one that has more containers and other values than a pod can have,
// and for one with the status of an injection that no injection wrote. The Review is nil if the text is no Pod at all, and
// otherwise knows the name also then.
func NewReview(podJSON []byte) (*Review, error) {
	d, err := yamledit.ParseJSON(podJSON, podShape(), maxPodValues)
	switch {
	case d == nil:
		return nil, err
	case d.Root.Kind != yaml.MappingNode:
		return nil, errors.New("want a Pod as JSON")
	}
	r := &Review{root: d.Root}
	if err != nil {
		return r, fmt.Errorf("too much of it matters to an injection: %w", err)
	}
	s, err := readStatus(d.Root)
	if err != nil {
		return r, err
	}
	if r.injected = s != nil; r.injected {
		if d, err = yamledit.ParseJSON(podJSON, injectedShape(), maxPodValues); err != nil {
			return r, err
		}
		r.root = d.Root
	}
	return r, d.RepeatedKey()
}

// Name returns the name of the Pod, or what its name will begin with.
func (r *Review) Name() string {
	metadata := yamledit.Value(r.root, "metadata")
	if name := text(metadata, "name"); name != "" {
		return name
	}
	return text(metadata, "generateName")
}

// Injected reports whether the Pod has been injected.
func (r *Review) Injected() bool { return r.injected }

// Patch returns the JSON patch (RFC 6902) that injects into the Pod: an empty list if nothing is to be done. The error is
// ErrLeftAlone for a pod that is left alone.
func (r *Review) Patch(s Settings) (patch []byte, warnings []string, err error) {
	after := yamledit.Clone(r.root)
	if warnings, err = Pod(after, s); err != nil {
		return nil, nil, err
	}
	patch, err = yamledit.Patch(r.root, after)
	return patch, warnings, err
}

// maxAnnotations is how many bytes Kubernetes allows the annotations of an object, and maxAnnotation how many one
// that holdfast reads may have.
const (
	maxAnnotations = 256 << 10
	maxAnnotation  = 8 << 10
)

// refuseAnnotations refuses annotations that Kubernetes refuses after the injection: until then they may have any size.
func refuseAnnotations(metadata, _ *yaml.Node) error {
	size := 0
	for _, pair := range keys(yamledit.Value(metadata, "annotations")) {
		if value := yamledit.Target(pair.Content[1]); value != nil {
			size += len(pair.Content[0].Value) + len(value.Value)
		}
	}
	if size > maxAnnotations {
		return fmt.Errorf("its annotations have %d KiB, and Kubernetes allows %d: remove some", size>>10, maxAnnotations>>10)
	}
	return nil
}
