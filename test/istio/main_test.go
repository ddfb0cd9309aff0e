package istio

import (
	"testing"

	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

func TestMain(m *testing.M) { rig.Main(m, setUp) }
