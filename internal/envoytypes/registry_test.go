package envoytypes

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// with returns a registry to which only some of the files are linked.
func with(t *testing.T, linked func(path string) bool) *registry {
	t.Helper()
	r := &registry{Types: new(protoregistry.Types), linked: new(protoregistry.Files)}
	protoregistry.GlobalFiles.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		if linked(fd.Path()) {
			if err := r.linked.RegisterFile(fd); err != nil {
				t.Fatal(err)
			}
		}
		return true
	})
	return r
}

func nothing(string) bool { return false }

func TestEveryMessageIsFoundAsIfItWereLinked(t *testing.T) {
	r := with(t, nothing)
	compared := make(map[string]bool)
	count := 0
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		want := mt.Descriptor()
		if file := want.ParentFile(); strings.HasPrefix(file.Path(), "grpc/") || file.Package() == "pb" {
			return true // of gRPC, and of protobuf for Go
		}
		count++
		found, err := r.FindMessageByURL("type.googleapis.com/" + string(want.FullName()))
		if err != nil {
			t.Errorf("%s: %v", want.FullName(), err)
			return true
		}
		got := found.Descriptor()
		if got == want || got.FullName() != want.FullName() {
			t.Errorf("%s: found %s", want.FullName(), got.FullName())
		}
		if path := want.ParentFile().Path(); !compared[path] {
			compared[path] = true
			if !proto.Equal(protodesc.ToFileDescriptorProto(got.ParentFile()), protodesc.ToFileDescriptorProto(want.ParentFile())) {
				t.Errorf("%s is not what is linked", path)
			}
		}
		return true
	})
	if count < 1500 {
		t.Errorf("only %d messages", count)
	}
}

func TestOnlyThePackagesThatAreNeededAreRead(t *testing.T) {
	r := with(t, nothing)
	if _, err := r.FindMessageByName("envoy.extensions.filters.http.buffer.v3.Buffer"); err != nil {
		t.Fatal(err)
	}
	if n := r.decoded.NumFiles(); n == 0 || n > 12 {
		t.Errorf("%d files were read for a message with a number", n)
	}
}

func TestNamesThatAreNotOfAMessageAreNotFound(t *testing.T) {
	r := with(t, nothing)
	for _, name := range []string{
		"", ".", "..", "/", "Envoy", "vendor.Thing", "envoy.config.core.v3", "envoy.config.core.v3.Unheard", "envoy.config.core.v3.Address.Unheard",
		"a" + strings.Repeat(".a", 1<<20), "envoy.config.core.v3/address.proto", "..envoy.config.core.v3.Address", "envoy.config.core.v3.Address.",
	} {
		if found, err := r.FindMessageByURL("x/" + name); !errors.Is(err, protoregistry.NotFound) {
			t.Errorf("%.100q: %v, %v", name, found, err)
		}
	}
	for _, name := range []protoreflect.FullName{
		"envoy.config.core.v3.RequestMethod", "envoy.config.core.v3.Address.address", "envoy.config.core.v3.GET",
	} {
		if _, err := r.FindMessageByName(name); err == nil || !strings.Contains(err.Error(), "is no message") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// gRPC's reflection looks for files and for whatever has a name.
func TestFilesAndDescriptorsAreFoundToo(t *testing.T) {
	r := with(t, nothing)
	for _, name := range []protoreflect.FullName{
		"envoy.extensions.filters.http.lua.v3.Lua", "envoy.extensions.filters.http.lua.v3.Lua.inline_code",
		"envoy.config.core.v3.RequestMethod", "envoy.service.discovery.v3.AggregatedDiscoveryService",
	} {
		if d, err := r.FindDescriptorByName(name); err != nil || d.FullName() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	const path = "envoy/extensions/filters/http/buffer/v3/buffer.proto"
	if f, err := r.FindFileByPath(path); err != nil || f.Path() != path || f.Imports().Len() == 0 || f.Imports().Get(0).IsPlaceholder() {
		t.Errorf("%v: %v", f, err)
	}
	for _, path := range []string{"", "/", "envoy", "envoy/unheard.proto", "envoy/config/core/v3/unheard.proto"} {
		if f, err := r.FindFileByPath(path); !errors.Is(err, protoregistry.NotFound) {
			t.Errorf("%q: %v, %v", path, f, err)
		}
	}
}

// A part of a message that is not linked may be of a type that is.
func TestPartsOfAMessageAreCopiedToTheTypesThatAreLinked(t *testing.T) {
	const filter = "envoy/extensions/filters/http/oauth2/"
	r := with(t, func(path string) bool { return !strings.HasPrefix(path, filter) })
	found, err := r.FindMessageByName("envoy.extensions.filters.http.oauth2.v3.OAuth2Credentials")
	if err != nil {
		t.Fatal(err)
	}
	m := found.New()
	if err := protojson.Unmarshal([]byte(`{"client_id": "a", "token_secret": {"name": "b", "sds_config": {"ads": {}}}}`), m.Interface()); err != nil {
		t.Fatal(err)
	}
	part := m.Get(m.Descriptor().Fields().ByName("token_secret")).Message()
	linked := Linked(part)
	if linked == part || !proto.Equal(linked.Interface(), part.Interface()) {
		t.Fatalf("%T %v, want a copy of %v", linked, linked, part)
	}
	if again := Linked(linked); again != linked {
		t.Errorf("of a linked type a copy was made: %T", again)
	}
	proto.Reset(part.Interface())
	proto.Merge(part.Interface(), linked.Interface())
	if text := m.Interface(); !strings.Contains(protojson.Format(text), `"b"`) {
		t.Errorf("written back: %v", text)
	}
}

func TestLookingForMessagesAtOnceFindsThem(t *testing.T) {
	r := with(t, nothing)
	var all sync.WaitGroup
	for _, name := range []protoreflect.FullName{
		"envoy.extensions.filters.http.rbac.v3.RBAC", "envoy.extensions.filters.http.lua.v3.Lua",
		"envoy.config.listener.v3.Listener", "envoy.extensions.filters.http.rbac.v3.RBACPerRoute",
	} {
		for range 4 {
			all.Go(func() {
				if _, err := r.FindMessageByName(name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	all.Wait()
}

func TestUnpackSaysWhatIsWrong(t *testing.T) {
	if _, err := Unpack(&anypb.Any{TypeUrl: "x/vendor.Thing"}); !errors.Is(err, protoregistry.NotFound) {
		t.Error(err)
	}
	if m, err := Unpack(&anypb.Any{TypeUrl: "x/envoy.config.core.v3.Address", Value: []byte{0xff}}); err == nil {
		t.Errorf("rubbish is %v", m)
	}
}
