package redact

import (
	"encoding/base64"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// What is hidden in a dump must be found, and the other way round: for each
// sensitive field of every type, one message that has it.
func TestEverySensitiveFieldIsFound(t *testing.T) {
	var finder Finder
	found := 0
	for mt := range everyType(t) {
		fields := mt.Descriptor().Fields()
		for i := range fields.Len() {
			fd := fields.Get(i)
			if !sensitive(fd) {
				continue
			}
			found++
			m := mt.New()
			if why := finder.Sensitive(pack(t, m.Interface())); why != "" {
				t.Errorf("%s is empty, and yet: %s", fd.FullName(), why)
			}
			switch {
			case fd.IsMap():
				entries := m.Mutable(fd).Map()
				entries.Set(protoreflect.ValueOfString("k").MapKey(), entries.NewValue())
			case fd.IsList():
				l := m.Mutable(fd).List()
				l.Append(l.NewElement())
			case fd.Message() != nil:
				m.Mutable(fd)
			case fd.Kind() == protoreflect.StringKind:
				m.Set(fd, protoreflect.ValueOfString(planted))
			case fd.Kind() == protoreflect.BytesKind:
				m.Set(fd, protoreflect.ValueOfBytes([]byte(planted)))
			default:
				t.Errorf("%s is of a kind that this test does not fill", fd.FullName())
			}
			why := finder.Sensitive(pack(t, m.Interface()))
			if !strings.Contains(why, string(fd.FullName())) || strings.Contains(why, planted) {
				t.Errorf("%s: %q", fd.FullName(), why)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d fields are sensitive", found)
	}
}

func TestAPrivateKeyIsFoundAtAnyPlaceInBase64(t *testing.T) {
	var finder Finder
	for shift := range 6 {
		text := strings.Repeat("x", shift) + "-----BEGIN EC PRIVATE KEY-----\nabc"
		for name, encoding := range map[string]*base64.Encoding{"standard": base64.StdEncoding, "URL": base64.RawURLEncoding} {
			m := &anypb.Any{TypeUrl: "x/vendor.Unknown", Value: []byte(encoding.EncodeToString([]byte(text)))}
			if finder.Sensitive(m) == "" {
				t.Errorf("%s alphabet, after %d bytes: not found", name, shift)
			}
		}
	}
	public := base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nPRIVATE KEYS"))
	if why := finder.Sensitive(&anypb.Any{TypeUrl: "x/vendor.Unknown", Value: []byte(public)}); why != "" {
		t.Error(why)
	}
}

func TestAPrivateKeyIsFoundInBase64ThatIsWrapped(t *testing.T) {
	pem := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat(planted+"\n", 12) + "-----END PRIVATE KEY-----\n"
	for _, width := range []int{5, 20, 64, 76} {
		for _, brk := range []string{"\n", "\r\n", " ", "\n  "} {
			for shift := range width {
				encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + pem))
				var wrapped strings.Builder
				for len(encoded) > width {
					wrapped.WriteString(encoded[:width] + brk)
					encoded = encoded[width:]
				}
				wrapped.WriteString(encoded)
				var finder Finder
				if finder.Sensitive(&anypb.Any{TypeUrl: "x/vendor.Unknown", Value: []byte(wrapped.String())}) == "" {
					t.Errorf("lines of %d that end with %q, after %d bytes: not found", width, brk, shift)
				}
				if width < minBase64Line {
					continue
				}
				got := finder.Reason("the key: "+wrapped.String()+" : is bad", slices.Values([]*anypb.Any{}))
				for line := range strings.SplitSeq(wrapped.String(), brk) {
					if len(line) >= minBase64Line && strings.Contains(got, line) {
						t.Fatalf("lines of %d that end with %q, after %d bytes: %s", width, brk, shift, got)
					}
				}
				if !strings.HasPrefix(got, "the key:") || !strings.HasSuffix(got, ": is bad") {
					t.Fatalf("lines of %d that end with %q, after %d bytes: %s", width, brk, shift, got)
				}
			}
		}
	}
}

func TestMessagesThatHideFromTheWalkCountAsSecret(t *testing.T) {
	deep := pack(t, &wrapperspb.StringValue{Value: "x"})
	for range 2 * maxDepth {
		deep = pack(t, deep)
	}
	// An Any in two parts, of which only both together say that it is a Secret.
	whole := pack(t, secret())
	config, err := proto.Marshal(&corev3.TypedExtensionConfig{Name: "x", TypedConfig: &anypb.Any{TypeUrl: whole.TypeUrl}})
	if err != nil {
		t.Fatal(err)
	}
	second := protowire.AppendTag(nil, 2, protowire.BytesType)
	second = protowire.AppendBytes(second, whole.Value)
	config = protowire.AppendTag(config, 2, protowire.BytesType)
	config = protowire.AppendBytes(config, second)
	var finder Finder
	for name, m := range map[string]*anypb.Any{
		"nested too deep": deep,
		"in two parts":    {TypeUrl: "x/envoy.config.core.v3.TypedExtensionConfig", Value: config},
		"cut short":       {TypeUrl: whole.TypeUrl, Value: whole.Value[:5]},
	} {
		if finder.Sensitive(m) == "" {
			t.Errorf("%s: nothing was found", name)
		}
	}
}

// A field that names where a secret is holds none itself: most listeners with TLS do
// that, and are needed for a start without the control plane.
func TestWhereAKeyIsIsNoSecret(t *testing.T) {
	file := &corev3.DataSource_Filename{Filename: "/certs/tls.key"}
	both := protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "hidden")
	for _, c := range []struct {
		name   string
		source *corev3.DataSource
		secret bool
	}{
		{"a file", &corev3.DataSource{Specifier: file}, false},
		{"a file, and where to watch for it", &corev3.DataSource{Specifier: file, WatchedDirectory: &corev3.WatchedDirectory{Path: "/certs"}}, false},
		{"a variable", &corev3.DataSource{Specifier: &corev3.DataSource_EnvironmentVariable{EnvironmentVariable: "KEY"}}, false},
		{"text", &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "k"}}, true},
		{"bytes", &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte("k")}}, true},
		{"nothing", &corev3.DataSource{}, true},
	} {
		var finder Finder
		m := pack(t, &tlsv3.TlsCertificate{PrivateKey: c.source})
		if why := finder.Sensitive(m); (why != "") != c.secret {
			t.Errorf("%s: %q", c.name, why)
		}
	}
	// Two fields of a oneof in the wire form: only the last one counts.
	source := append(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "/certs/tls.key"), both...)
	cert := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), source)
	var finder Finder
	if finder.Sensitive(&anypb.Any{TypeUrl: "x/envoy.extensions.transport_sockets.tls.v3.TlsCertificate", Value: cert}) == "" {
		t.Error("text behind a file name was not found")
	}
}

func TestTheWalkIsSharedByManyAtOnce(t *testing.T) {
	var finder Finder
	with := pack(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{secret().GetTlsCertificate()},
	}})
	without := pack(t, &endpointv3.ClusterLoadAssignment{ClusterName: "c", Endpoints: []*endpointv3.LocalityLbEndpoints{{}}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if finder.Sensitive(with) == "" || finder.Sensitive(without) != "" {
				t.Error("wrong")
			}
		})
	}
	wg.Wait()
}
