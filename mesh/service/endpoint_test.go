package service

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

func TestAnEndpointIsEncodedAsIstioDoes(t *testing.T) {
	for _, tc := range []struct {
		name     string
		endpoint Endpoint
		mTLS     bool
		want     string
	}{
		{
			"a Pod with a sidecar",
			Endpoint{
				Address: "10.0.0.1", Port: 8080, Weight: 3, HasSidecar: true, Namespace: "default", Workload: "reviews-v1", Cluster: "c1",
				Labels: map[string]string{"app": "reviews", "version": "v1"},
			},
			true,
			`{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 8080}}},
			"healthStatus": "HEALTHY", "loadBalancingWeight": 3, "metadata": {"filterMetadata": {
			"envoy.transport_socket_match": {"tlsMode": "istio"}, "istio": {"workload": "reviews-v1;default;reviews;v1;c1"}}}}`,
		},
		{
			"one with mTLS disabled", Endpoint{Address: "::1", Port: 80, HasSidecar: true, Health: Draining}, false,
			`{"endpoint": {"address": {"socketAddress": {"address": "::1", "portValue": 80}}},
			"healthStatus": "DRAINING", "loadBalancingWeight": 1, "metadata": {"filterMetadata": {"istio": {"workload": ";;;;"}}}}`,
		},
		{
			"a Unix socket without a sidecar", Endpoint{Address: "unix:///run/app.sock", Workload: "w", Labels: map[string]string{"version": "latest"}}, true,
			`{"endpoint": {"address": {"pipe": {"path": "/run/app.sock"}}},
			"healthStatus": "HEALTHY", "loadBalancingWeight": 1, "metadata": {"filterMetadata": {"istio": {"workload": "w;;w;;"}}}}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want endpointv3.LbEndpoint
			if err := protojson.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if got := tc.endpoint.Encode(tc.mTLS); !proto.Equal(got, &want) {
				t.Errorf("got %s\nwant %s", protojson.Format(got), protojson.Format(&want))
			}
		})
	}
}

func TestEndpointsThatDifferInAFieldAreNotEqual(t *testing.T) {
	base := Endpoint{Labels: map[string]string{"a": "b"}}
	if !base.Equal(&Endpoint{Labels: map[string]string{"a": "b"}}) {
		t.Error("equal endpoints differ")
	}
	for i := range reflect.TypeFor[Endpoint]().NumField() {
		field := reflect.TypeFor[Endpoint]().Field(i)
		if field.Name == "Encoded" {
			continue // follows from the others
		}
		other := base
		switch value := reflect.ValueOf(&other).Elem().Field(i); value.Kind() {
		case reflect.String:
			value.SetString("x")
		case reflect.Uint8, reflect.Uint32:
			value.SetUint(1)
		case reflect.Bool:
			value.SetBool(true)
		case reflect.Map:
			other.Labels = map[string]string{"a": "c"}
		default:
			t.Fatalf("%s: a field of another kind", field.Name)
		}
		if base.Equal(&other) {
			t.Errorf("endpoints with another %s are equal", field.Name)
		}
	}
}
