package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// reason cleans a text about some messages.
func reason(t *testing.T, said string, about ...proto.Message) string {
	t.Helper()
	var bodies []*anypb.Any
	for _, m := range about {
		bodies = append(bodies, pack(t, m))
	}
	var f Finder
	return f.Reason(said, slices.Values(bodies))
}

// The texts are those of Envoy 1.40.0, as it sent them.
func TestEnvoysSentenceIsKeptAndTheDumpIsNot(t *testing.T) {
	const cluster = "goo.gle/debugproto    \nname: \"bad1\"\ntype: STATIC\nconnect_timeout {\n}\ntransport_socket {\n  name: \"tls\"\n  typed_config {\n    [type.googleapis.com/envoy.X] {\n" +
		"      private_key {\n        inline_bytes: \"-----BEGIN PRIVATE KEY-----\\nSUPER\\\"SE}CRET\\377x\\n\"\n      }\n    }\n  }\n}\n"
	for _, tc := range []struct{ name, said, want string }{
		{"nothing", "", ""},
		{"a sentence", "Error adding/updating listener(s) badl: Failed to load certificate chain from <inline>\n",
			"Error adding/updating listener(s) badl: Failed to load certificate chain from <inline>"},
		{"a constraint", cluster + ": Proto constraint validation failed (ClusterValidationError.ConnectTimeout: value must be greater than 0s)",
			`"bad1": Proto constraint validation failed (ClusterValidationError.ConnectTimeout: value must be greater than 0s)`},
		{"a constraint, on one line", "goo.gle/debugstr  name: \"bad1\" type: STATIC connect_timeout { } weights: [1, 2] x: -1.5 : Proto constraint validation failed (Y)",
			`"bad1": Proto constraint validation failed (Y)`},
		{"a constraint of a part", "Error adding/updating cluster(s) bad3: goo.gle/debugproto    \ncommon_tls_context {\n}\nsni: \"\\000\\000\"\n: Proto constraint validation failed (Z)",
			"Error adding/updating cluster(s) bad3: Proto constraint validation failed (Z)"},
		{"several resources", "Error adding/updating cluster(s) bad2: Failed to load certificate chain from <inline>, bad3: goo.gle/debugproto \nsni: \"x\"\n: Proto constraint validation failed (Z)",
			"Error adding/updating cluster(s) bad2: Failed to load certificate chain from <inline>, bad3: Proto constraint validation failed (Z)"},
		{"lines of several resources", "Error adding/updating listener(s) badl7: Unable to unpack as envoy.X: goo.gle/debugproto    \ntype_url: \"t/envoy.X\"\nvalue: \"\\n\\377BYTES\"\n\nbadl8: Failed to load private key\n",
			"Error adding/updating listener(s) badl7: Unable to unpack as envoy.X; badl8: Failed to load private key"},
		{"on one line, with a sentence that looks like a field", "x: goo.gle/debugstr sni: \"x\" b: Failed to load", "x: b: Failed to load"},
		{"JSON", "Error adding/updating listener(s) badl5: Unable to parse JSON as proto (INVALID_ARGUMENT: near 1:10: unexpected character: '\"'; expected '{'): {\"users\":\"TSPASSWORD\"}\n",
			`Error adding/updating listener(s) badl5: Unable to parse JSON as proto (INVALID_ARGUMENT: near 1:10: unexpected character: '"'; expected '{'): {…}`},
		{"JSON that is cut off", `Unable to parse: {"users":"TSPASS`, "Unable to parse: {…}"},
		{"a dump that is cut off", cluster[:200], `"bad1"`},
		{"a dump that is cut off in its name", `goo.gle/debugproto name: "bad`, `"bad`},
		{"nothing but a dump", "goo.gle/debugproto \ntype: STATIC\n", noReason},
		{"a dump without its marker", "wrong: " + strings.TrimPrefix(cluster, "goo.gle/debugproto    \n"), `wrong: name: "bad1"; type: STATIC; connect_timeout {…}; transport_socket {…}`},
		{"a constraint in Envoy 1.36", strings.TrimPrefix(cluster, "goo.gle/debugproto    \n") + ": Proto constraint validation failed (Y)", `"bad1": Proto constraint validation failed (Y)`},
		{"a constraint of a part in Envoy 1.36", "Error adding/updating cluster(s) bad3: common_tls_context {\n}\nsni: \"\\000\\000\"\n: Proto constraint validation failed (Z), bad4: sni: \"x: y\"\n: Proto constraint validation failed (Z)",
			"Error adding/updating cluster(s) bad3: Proto constraint validation failed (Z), bad4: Proto constraint validation failed (Z)"},
		{"lines of several resources in Envoy 1.36", "Error adding/updating listener(s) badl7: Unable to unpack as envoy.X: type_url: \"t/envoy.X\"\nvalue: \"\\n\\377BYTES\"\n\nbadl8: Failed to load private key\n",
			"Error adding/updating listener(s) badl7: Unable to unpack as envoy.X; badl8: Failed to load private key"},
		{"a sentence in lines", "Error adding/updating listener(s) a: Failed: x\nb: no: \"y\"\n", "Error adding/updating listener(s) a: Failed: x; b: no: \"y\""},
		{"few characters in braces", "basic auth: unsupported htpasswd format: please use {SHA}", "basic auth: unsupported htpasswd format: please use {SHA}"},
		{"control characters", "a\x1b[31mb\x00c\xff\td", "a [31mb c\uFFFD d"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := reason(t, tc.said); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestAReasonIsBounded(t *testing.T) {
	for name, said := range map[string]string{
		"words":           "beginning " + strings.Repeat("word ", 600_000) + "end",
		"wide characters": strings.Repeat("ü", 3000),
		"a dump":          "goo.gle/debugproto \nname: \"n\"\n" + strings.Repeat("a { b: \"c\" }\n", 200_000) + ": why",
		"braces":          strings.Repeat("{", 100_000),
		"quotes":          strings.Repeat(`goo.gle/debug x: "`, 10_000),
		"no markers":      strings.Repeat(": a {", 100_000) + "\n: end",
		"backslashes":     strings.Repeat(`\`, 20_000),
	} {
		got := reason(t, said, secret())
		if len(got) > MaxReason || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, valid %v", name, len(got), utf8.ValidString(got))
		}
		if name == "words" && !strings.HasPrefix(got, "beginning") {
			t.Errorf("%s: %.40q", name, got)
		}
		if name == "a dump" && got != `"n": why` {
			t.Errorf("%s: %.80q", name, got)
		}
	}
	long := "Error adding/updating cluster(s) c: " + strings.Repeat("embedded message failed validation | caused by ", 60) + "value must be greater than 0s"
	if got := reason(t, long); !strings.HasPrefix(got, "Error adding") || !strings.HasSuffix(got, "greater than 0s") {
		t.Errorf("beginning and end are not both there: %q", got)
	}
}

// forms are the ways in which a value may be written.
func forms(value string) map[string]string {
	quoted, _ := json.Marshal(value)
	asText, _ := prototext.MarshalOptions{EmitASCII: true}.Marshal(&corev3.HeaderValue{RawValue: []byte(value)})
	var octal, hexEscapes, colons strings.Builder
	for i := range len(value) {
		fmt.Fprintf(&octal, `\%03o`, value[i])
		fmt.Fprintf(&hexEscapes, `\x%02x`, value[i])
		fmt.Fprintf(&colons, "%02X:", value[i])
	}
	wrapped := base64.StdEncoding.EncodeToString([]byte("\x0a\x10" + value + "\x12"))
	for i := 20; i < len(wrapped); i += 21 {
		wrapped = wrapped[:i] + "\n" + wrapped[i:]
	}
	return map[string]string{
		"as it is":            value,
		"JSON":                string(quoted),
		"JSON in JSON":        strconv.Quote(string(quoted)),
		"Go":                  strconv.Quote(value),
		"text format":         string(asText),
		"octal":               octal.String(),
		"hex escapes":         hexEscapes.String(),
		"hexadecimal":         hex.EncodeToString([]byte(value)),
		"hex after a digit":   "a" + hex.EncodeToString([]byte(value)),
		"hex with colons":     colons.String(),
		"base64":              base64.StdEncoding.EncodeToString([]byte(value)),
		"base64 after a byte": base64.RawURLEncoding.EncodeToString([]byte("x" + value)),
		"base64 in lines":     wrapped,
		"percent-encoded":     url.QueryEscape(value),
		"percent-encoded, +":  url.PathEscape(value),
		"the first half":      value[:len(value)/2+1],
		"the second half":     value[len(value)/2:],
	}
}

func TestWhatIsSecretInTheResourceIsTakenOutOfTheText(t *testing.T) {
	const pem = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSECRETSECRET\nZm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9v/+==\n-----END PRIVATE KEY-----\n"
	header := func(name, value string) *routev3.RouteConfiguration {
		return &routev3.RouteConfiguration{Name: "r", RequestHeadersToAdd: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: name, Value: value}}}}
	}
	socket := func(m proto.Message) *corev3.TransportSocket {
		return &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, m)}}
	}
	withKey := func(key string) *tlsv3.TlsCertificate { return &tlsv3.TlsCertificate{PrivateKey: inline(key)} }
	misfit, err := structpb.NewStruct(map[string]any{"private_key": "s3cr3t pass: word\"\x01!"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		in    proto.Message
		value string
	}{
		{"a key", secret(), planted},
		{"a key in PEM", &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: withKey(pem)}}, pem},
		{"a binary key", &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: withKey("\x30\x81\x87\x02\x01\x00\xff\x13\"\\'\n\x00\x2a\x86H")}}, "\x30\x81\x87\x02\x01\x00\xff\x13\"\\'\n\x00\x2a\x86H"},
		{"a key of a cluster", &clusterv3.Cluster{TransportSocket: socket(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{withKey(planted)}}})}, planted},
		{"a short password", &tlsv3.TlsCertificate{Password: inline("hunter22")}, "hunter22"},
		{"keys of session tickets", &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline("first"), inline(planted)}}, planted},
		{"a generic secret", &tlsv3.GenericSecret{Secret: inline(planted)}, planted},
		{"a header", header("Authorization", "Bearer "+planted), planted},
		{"a header with a short token", header("x-acme-token", "t0k3n-42"), "t0k3n-42"},
		{"basic credentials", header("authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("user:"+planted))), planted},
		{"a struct that does not fit its type", &xdstypev3.TypedStruct{TypeUrl: "t/envoy.extensions.transport_sockets.tls.v3.TlsCertificate", Value: misfit}, "s3cr3t pass: word\"\x01!"},
		{"a key in a type that is not known", &anypb.Any{TypeUrl: "t/acme.Unknown", Value: []byte("\x0a\x03abc" + pem)}, pem},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for form, written := range forms(tc.value) {
				switch {
				case strings.HasPrefix(form, "JSON") && !utf8.ValidString(tc.value):
					continue // JSON cannot say it
				case strings.HasSuffix(form, "half") && tc.value == pem:
					continue // a key in PEM whose end is not there may go on to the end of the text
				}
				got := reason(t, "Failed to load: <"+written+">, c2 is good", tc.in)
				if !strings.HasPrefix(got, "Failed to load: <") || !strings.HasSuffix(got, ">, c2 is good") {
					t.Errorf("%s: the sentence is gone: %q", form, got)
				}
				if !strings.Contains(form, "half") && strings.Contains(got, written) || len(tc.value) > 24 && !strings.Contains(got, Marker) {
					t.Errorf("%s: %q", form, got)
				}
				for i := range len(tc.value) - gramSize + 1 { // no part of it either
					if strings.Contains(got, tc.value[i:i+gramSize]) {
						t.Fatalf("%s: %q shows %q", form, got, tc.value[i:i+gramSize])
					}
				}
				if left := strings.TrimSuffix(strings.TrimPrefix(got, "Failed to load: <"), ">, c2 is good"); !strings.Contains(form, "half") && len(strings.ReplaceAll(left, Marker, "")) > 2*gramSize {
					t.Errorf("%s: %q is left", form, left)
				}
			}
		})
	}
}

func TestTheFieldThatIsWrongIsNamed(t *testing.T) {
	written, err := structpb.NewStruct(map[string]any{"private_key": planted, "password": map[string]any{"inline_string": 5, "x": []any{"0123456789", "another"}}})
	if err != nil {
		t.Fatal(err)
	}
	in := &xdstypev3.TypedStruct{TypeUrl: "t/envoy.extensions.transport_sockets.tls.v3.TlsCertificate", Value: written}
	got := reason(t, "invalid JSON @ private_key, password.inline_string: "+planted+" 0123456789 another", in)
	if got != "invalid JSON @ private_key, password.inline_string: [redacted] [redacted] [redacted]" {
		t.Errorf("%q", got)
	}
}

func TestWordsThatAreNoSecretStay(t *testing.T) {
	in := &tlsv3.GenericSecret{Secret: inline("ad")}
	if got := reason(t, "Error adding a bad one: 'ad' is wrong", in); got != "Error adding a bad one: '[redacted]' is wrong" {
		t.Errorf("%q", got)
	}
	file := &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/certs/tls.key"}}}
	if got := reason(t, "cannot read /certs/tls.key", file); got != "cannot read /certs/tls.key" {
		t.Errorf("%q", got)
	}
}

func TestALineIsFitForATerminal(t *testing.T) {
	if got := Line("denied\r\n\x1b]0;title\x07: \u202e try again\n"); got != "denied; ]0;title :   try again" {
		t.Errorf("%q", got)
	}
	if got := Line(strings.Repeat("x", 100_000)); len(got) > MaxReason {
		t.Errorf("%d bytes", len(got))
	}
}

// A text of any form, with a key in any form: what comes out is one bounded line without the key.
func FuzzReason(f *testing.F) {
	f.Add("goo.gle/debugproto \nname: \"x\"\nprivate_key { inline_string: \"", "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----", "\"}\n: Proto constraint validation failed (X)", uint8(1))
	f.Add("Unable to parse JSON as proto (X): {\"users\":", "user:pass\x00word", "}", uint8(4))
	f.Add("\\", "a \\ b\nc\" d' e", "%4", uint8(9))
	f.Add(strings.Repeat("x", maxExamined-9), "0123456789abcdefgh", strings.Repeat("y", 2000), uint8(0))
	f.Fuzz(func(t *testing.T, before, key, after string, form uint8) {
		if len(key) < 8 || len(key) > 4096 || strings.Contains(noReason+Marker+" … {…}", key) || strings.Contains(before+after, key) {
			return
		}
		all := forms(key)
		names := slices.Sorted(func(yield func(string) bool) {
			for name := range all {
				if !yield(name) {
					return
				}
			}
		})
		written := all[names[int(form)%len(names)]]
		got := reason(t, before+written+after, &tlsv3.Secret{Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline(key)}}})
		if len(got) > MaxReason || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
		if strings.Contains(got, key) {
			t.Errorf("%q shows %q", got, key)
		}
	})
}

// Some word of each sentence can be read as the base64 or the hexadecimal digits of a byte or two.
func TestAShortSecretIsNotLookedForInBase64OrHex(t *testing.T) {
	const said = "Error adding/updating listener(s) one: Couldn't find valid command"
	var finder Finder
	for a := range 256 {
		for _, value := range []string{string([]byte{byte(a)}), string([]byte{byte(a), ')'}), string([]byte{byte(a), '(', 0xa7})} {
			if strings.Contains(said, strings.TrimSpace(value)) {
				continue
			}
			m := &corev3.HeaderValue{Key: "authorization", RawValue: []byte(value)}
			if got := finder.Reason(said, slices.Values([]*anypb.Any{pack(t, m)})); got != said {
				t.Errorf("%q: %s", value, got)
			}
		}
	}
}
