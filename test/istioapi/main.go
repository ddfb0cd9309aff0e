// Command istioapi lists the fields of the messages of Istio's API that holdfast-mesh reads, one a line: the message, the number and
// name of the field, and its type. The release is that of istio.io/api in the file of -modfile: 1.NN.mod.
package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"

	_ "istio.io/api/mesh/v1alpha1"
	_ "istio.io/api/networking/v1"
	_ "istio.io/api/networking/v1alpha3"
	_ "istio.io/api/networking/v1beta1"
	_ "istio.io/api/security/v1"
	_ "istio.io/api/telemetry/v1"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

func main() {
	var lines []string
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "istio.") {
			lines = append(lines, fields(f.Messages())...)
		}
		return true
	})
	slices.Sort(lines)
	out := bufio.NewWriter(os.Stdout)
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fields(messages protoreflect.MessageDescriptors) (lines []string) {
	for i := range messages.Len() {
		m := messages.Get(i)
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			kind := f.Kind().String()
			switch {
			case f.Message() != nil:
				kind = string(f.Message().FullName())
			case f.Enum() != nil:
				kind = string(f.Enum().FullName())
			}
			lines = append(lines, fmt.Sprintf("%s %d %s %s %s", m.FullName(), f.Number(), f.JSONName(), f.Cardinality(), kind))
		}
		lines = append(lines, fields(m.Messages())...)
	}
	return lines
}
