package istio

import (
	"testing"

	"istio.io/istio/pilot/pkg/xds"
	pilotxds "istio.io/istio/pilot/test/xds"
)

func TestX(t *testing.T) {
	s := pilotxds.NewFakeDiscoveryServer(t, pilotxds.FakeOptions{ConfigString: ""})
	_ = s
	_ = xds.NewDiscoveryServer
}
