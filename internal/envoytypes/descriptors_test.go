package envoytypes_test

import (
	"flag"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/holdfast-xds/holdfast/internal/envoytypes/linked"
)

var update = flag.Bool("update", false, "write descriptors.binpb instead of comparing with it")

const descriptorFile = "descriptors.binpb"

// linkedFiles returns the descriptors of all files that are linked into the tests, but for what has nothing to do with
// Envoy's API: gRPC's own.
func linkedFiles() *descriptorpb.FileDescriptorSet {
	set := &descriptorpb.FileDescriptorSet{}
	protoregistry.GlobalFiles.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(fd.Path(), "grpc/") {
			set.File = append(set.File, protodesc.ToFileDescriptorProto(fd))
		}
		return true
	})
	slices.SortFunc(set.File, func(a, b *descriptorpb.FileDescriptorProto) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	return set
}

func TestTheDescriptorsAreThoseOfTheModuleThatIsUsed(t *testing.T) {
	linked := linkedFiles()
	if *update {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(linked)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(descriptorFile, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(descriptorFile)
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		t.Fatal(err)
	}
	want := make(map[string]*descriptorpb.FileDescriptorProto)
	for _, f := range linked.GetFile() {
		want[f.GetName()] = f
	}
	const hint = "; run go test ./internal/envoytypes -update"
	for _, f := range set.GetFile() {
		if !proto.Equal(f, want[f.GetName()]) {
			t.Errorf("%s is not that of the module%s", f.GetName(), hint)
		}
		delete(want, f.GetName())
	}
	for name := range want {
		t.Errorf("%s is missing%s", name, hint)
	}
}

// What is linked decides what is in the file: a package that is new in the module must not be forgotten.
func TestEveryPackageOfTheModuleIsLinked(t *testing.T) {
	listed, err := exec.Command("go", "list", "github.com/envoyproxy/go-control-plane/envoy/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "linked/linked.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	imported := make(map[string]bool)
	for _, spec := range parsed.Imports {
		imported[strings.Trim(spec.Path.Value, `"`)] = true
	}
	packages := 0
	for pkg := range strings.FieldsSeq(string(listed)) {
		if !strings.HasSuffix(pkg, "/v3") {
			continue // v2 is not Envoy's any more
		}
		packages++
		if !imported[pkg] {
			t.Errorf("%s is not imported by linked/linked.go", pkg)
		}
	}
	if packages < 300 {
		t.Errorf("the module has only %d packages of v3", packages)
	}
}
