package xds

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// FuzzScanName shows that the scan finds the name that protobuf finds. The
// message is ControlPlane, whose only field is a string with number 1, so that
// protobuf too looks at nothing else of the body. More seeds are in testdata/fuzz.
func FuzzScanName(f *testing.F) {
	for _, m := range named("name") {
		f.Add(marshal(f, m))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		name, err := ScanName(&anypb.Any{Value: body})
		if (err == nil) == (name == "") {
			t.Fatalf("name %q and error %v", name, err)
		}
		var m corev3.ControlPlane
		if real := proto.Unmarshal(body, &m); real != nil {
			if err == nil && !hidesInvalidName(body) {
				t.Errorf("%q was read from what protobuf refuses: %v", name, real)
			}
			return
		}
		switch {
		case err == nil && name != m.GetIdentifier():
			t.Errorf("read %q, protobuf says %q", name, m.GetIdentifier())
		case errors.Is(err, ErrNoName) && m.GetIdentifier() != "":
			t.Errorf("%v, protobuf says %q", err, m.GetIdentifier())
		case err != nil && !errors.Is(err, ErrNoName) && len(m.GetIdentifier()) <= MaxNameBytes && !numberForName(body):
			t.Errorf("%v, and protobuf finds nothing wrong", err)
		}
	})
}

// hidesInvalidName: an earlier field 1 is not UTF-8. The scan looks at the last.
func hidesInvalidName(body []byte) bool {
	valid := true
	_ = scanFields(body, func(num protowire.Number, typ protowire.Type, val []byte) error {
		if num == 1 && typ == protowire.BytesType {
			_, err := CheckName(val)
			valid = valid && (err == nil || len(val) == 0)
		}
		return nil
	})
	return !valid
}

// numberForName: field 1 is no string, which protobuf takes for an unknown field.
func numberForName(body []byte) bool {
	found := false
	_ = scanFields(body, func(num protowire.Number, typ protowire.Type, _ []byte) error {
		found = found || num == 1 && typ != protowire.BytesType
		return nil
	})
	return found
}

// FuzzEDSName shows that the EDS name of whatever is a Cluster to protobuf is
// what the decoded message says.
func FuzzEDSName(f *testing.F) {
	for _, c := range []*clusterv3.Cluster{
		{Name: "c"},
		{Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}, EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "s"}},
		{Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "x"}}},
	} {
		f.Add(marshal(f, c))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := EDSName("c", body)
		if err != nil && got != "" {
			t.Fatalf("%q and %v", got, err)
		}
		var c clusterv3.Cluster
		if proto.Unmarshal(body, &c) != nil {
			return
		}
		want := edsNameOf("c", &c)
		switch {
		case err != nil && len(want) <= MaxNameBytes:
			t.Errorf("%v, protobuf says %q", err, want)
		case err == nil && got != want:
			t.Errorf("got %q, protobuf says %q", got, want)
		}
	})
}

// FuzzFromAny shows that no entry of a response, however broken, does more than
// return an error, and that what is accepted arrives downstream as it was, in
// both forms.
func FuzzFromAny(f *testing.F) {
	types := append(Types(), unknownType)
	for i, url := range Types() {
		body := &anypb.Any{TypeUrl: url, Value: marshal(f, named("n")[Short(url)])}
		f.Add(uint8(i), url, body.GetValue())
		f.Add(uint8(i), WrapperType, marshal(f, &discoveryv3.Resource{Name: "w", Version: "1", Resource: body, Aliases: []string{"a"}}))
	}
	f.Fuzz(func(t *testing.T, typ uint8, entryType string, value []byte) {
		typeURL := types[int(typ)%len(types)]
		r, err := FromAny(typeURL, "v", &anypb.Any{TypeUrl: entryType, Value: value}, now)
		if err != nil {
			return
		}
		if r.Type != typeURL || r.Name == "" || r.Version == "" || len(r.Name) > MaxNameBytes {
			t.Fatalf("accepted: %+v", r)
		}
		same := func(form string, back *Resource, err error) {
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if back.Name != r.Name || back.Version != r.Version || back.EDSName != r.EDSName || back.Wrapped != r.Wrapped || !slices.Equal(back.Aliases(), r.Aliases()) {
				t.Errorf("%s: came back as %+v, was %+v", form, back, r)
			}
			if (back.Body == nil) != (r.Body == nil) || !bytes.Equal(back.Body.GetValue(), r.Body.GetValue()) {
				t.Errorf("%s: the body came back as % x, was % x", form, back.Body.GetValue(), r.Body.GetValue())
			}
		}
		entry, err := r.Any()
		if err != nil {
			t.Fatal(err)
		}
		back, err := FromAny(typeURL, "w", entry, now)
		if !loses(r) {
			same("SotW", back, err)
		}
		var w discoveryv3.Resource
		if err := proto.Unmarshal(marshal(t, r.Wrapper(0)), &w); err != nil {
			t.Fatal(err)
		}
		back, err = FromWrapper(typeURL, &w, now)
		same("Delta", back, err)
	})
}

// loses: metadata and cache control do not make SotW use a wrapper, which clients
// other than Envoy may not know; what they say is in the version all the same.
func loses(r *Resource) bool {
	return !r.Wrapped && len(r.Aliases()) == 0 && (r.Metadata() != nil || r.CacheControl() != nil)
}
