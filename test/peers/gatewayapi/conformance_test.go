package gatewayapi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientset "k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/mesh/gatewayapi"
)

// profiles are what the suite calls parts of itself.
var profiles = []suite.ConformanceProfileName{
	suite.GatewayHTTPConformanceProfileName, suite.GatewayGRPCConformanceProfileName,
	suite.GatewayTLSConformanceProfileName, suite.GatewayTCPConformanceProfileName,
}

// class is the name of the GatewayClass.
const class = "conformance"

// inShort are the suite's tests that are played with -short: some of each profile.
var inShort = []string{
	"HTTPRouteSimpleSameNamespace", "HTTPRouteMatching", "HTTPRouteReferenceGrant", "GatewayWithAttachedRoutes", "BackendTLSPolicy",
	"GRPCExactMethodMatching", "TLSRouteSimpleSameNamespace", "TLSRouteTerminateSimpleSameNamespace", "TCPRouteParentRefAttachAll",
}

func TestTheSuiteOfTheGatewayAPI(t *testing.T) {
	for _, controller := range []gatewayv1.GatewayController{"holdfast.dev/gateway-controller", "istio.io/gateway-controller"} {
		name, _, _ := strings.Cut(string(controller), "/")
		t.Run(name, func(t *testing.T) { conform(t, controller) })
	}
}

func conform(t *testing.T, controller gatewayv1.GatewayController) {
	p := newPlane(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientscheme.AddToScheme, gatewayv1.Install, gatewayv1beta1.Install, apiextensionsv1.AddToScheme,
	} {
		p.Check(add(scheme))
	}
	conf := &rest.Config{Host: p.api, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}, QPS: -1}
	options := client.Options{Scheme: scheme, Mapper: p.mapper()}
	c, err := client.New(conf, options)
	p.Check(err)
	set, err := clientset.NewForConfig(conf)
	p.Check(err)
	p.Check(c.Create(context.Background(), &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: gatewayv1.GatewayClassSpec{ControllerName: controller},
	}))
	p.Eventually(func() error {
		of := &gatewayv1.GatewayClass{}
		if err := c.Get(context.Background(), client.ObjectKey{Name: class}, of); err != nil || len(of.Status.SupportedFeatures) > 0 {
			return err
		}
		return errors.New("the status of the class names no features")
	})
	// The address that the suite may use for a Gateway is a Service that selects the proxies of that Gateway.
	p.Check(c.Create(context.Background(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: suite.InfrastructureNamespace, Name: "usable"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{gatewayLabel: "gateway-static-addresses"}, Ports: []corev1.ServicePort{{Port: 8080, TargetPort: intstr.FromInt32(8080)}},
		},
	}))
	var skip []string
	if testing.Short() {
		for _, test := range tests.ConformanceTests {
			if !slices.Contains(inShort, test.ShortName) {
				skip = append(skip, test.ShortName)
			}
		}
	}
	of := confv1.Implementation{
		Organization: "holdfast-xds", Project: "holdfast-mesh", URL: "https://github.com/holdfast-xds/holdfast", Version: "unreleased", Contact: []string{"https://github.com/holdfast-xds/holdfast/issues"},
	}
	s, err := suite.NewConformanceTestSuite(suite.ConformanceOptions{
		ConfigurableOptions: suite.ConfigurableOptions{
			GatewayClassName: class, ConformanceProfiles: profiles, SkipTests: skip, Implementation: of,
			UsableNetworkAddresses: address("usable"), UnusableNetworkAddresses: address("unusable"),
			TimeoutConfig: config.DefaultTimeoutConfig(), CleanupTestResources: true,
		},
		Client: c, ClientOptions: options, Clientset: set, RestConfig: conf, ManifestFS: []fs.FS{&conformance.Manifests},
	})
	p.Check(err)
	t.Cleanup(func() { p.report(s, controller) }) // when the suite has ended, whose tests run in parallel
	s.Setup(t, tests.ConformanceTests)
	p.Check(s.Run(t, tests.ConformanceTests))
}

// address returns the address of a Gateway whose proxies are the endpoints of a Service.
func address(service string) []gatewayv1.GatewaySpecAddress {
	kind := gatewayv1.HostnameAddressType
	return []gatewayv1.GatewaySpecAddress{{Type: &kind, Value: service + "." + suite.InfrastructureNamespace + ".svc.cluster.local"}}
}

// A feature that is not claimed has its reason on the page, and one that is claimed is one that the suite knows.
func TestThePageSaysWhichFeaturesAreNotClaimed(t *testing.T) {
	of := features.SetsToNamesSet(features.AllFeatures).Difference(features.SetsToNamesSet(features.MeshCoreFeatures, features.MeshExtendedFeatures))
	for _, claimed := range gatewayapi.SupportedFeatures() {
		name := features.FeatureName(claimed.Name)
		if !of.Has(name) {
			t.Errorf("%s is claimed, and is no feature of gateways", name)
		}
		of.Delete(name)
	}
	page, err := os.ReadFile(filepath.Join(envoytest.Root(t), "docs", "mesh.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| feature | why not |\n| --- | --- |\n")
	if !found {
		t.Fatal("docs/mesh.md has no table of features")
	}
	var rows, want []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			break
		}
		rows = append(rows, strings.Trim(cells[1], " `"))
	}
	for name := range of {
		want = append(want, string(name))
	}
	slices.Sort(want)
	if !slices.Equal(rows, want) {
		t.Errorf("docs/mesh.md says that these are not claimed:\n%q\nand these are not:\n%q", rows, want)
	}
}

// report prints the suite's report, and writes it into the directory HOLDFAST_CONFORMANCE_REPORTS.
func (p *plane) report(s *suite.ConformanceTestSuite, controller gatewayv1.GatewayController) {
	report, err := s.Report()
	p.Check(err)
	text, err := yaml.Marshal(report)
	p.Check(err)
	p.Logf("%s:\n%s", controller, text)
	if dir := os.Getenv("HOLDFAST_CONFORMANCE_REPORTS"); dir != "" {
		p.Check(os.WriteFile(filepath.Join(dir, strings.ReplaceAll(string(controller), "/", "_")+".yaml"), text, 0o600))
	}
}
