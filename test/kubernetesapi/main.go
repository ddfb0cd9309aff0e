// Command kubernetes decodes manifests of its standard input with the types of one release of Kubernetes, strictly: an unknown
// field, a field that is there twice, or an unknown kind of a known group is an error. The release is that of k8s.io/api in the file
// of -modfile: 1.NN.mod. Kinds of groups that are not Kubernetes' own are counted and left out.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme,
		networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	documents := yaml.NewYAMLReader(bufio.NewReader(in))
	decoded, others := 0, 0
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(document)) == "" {
			continue
		}
		_, kind, err := decoder.Decode(document, nil, nil)
		switch {
		case err == nil:
			decoded++
		case kind != nil && !scheme.IsGroupRegistered(kind.Group):
			others++
		default:
			return fmt.Errorf("%s: %w\n%s", release(), err, document)
		}
	}
	if decoded == 0 {
		return errors.New("no manifest on standard input")
	}
	fmt.Fprintf(out, "%s: %d decoded, %d of other groups\n", release(), decoded, others)
	return nil
}

// release names the release of Kubernetes whose types are used.
func release() string {
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if d.Path == "k8s.io/api" {
			return "Kubernetes 1" + strings.TrimPrefix(d.Version, "v0")
		}
	}
	return "Kubernetes"
}
