package e2e

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	statev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

const (
	routingSeed     = 1
	routingTables   = 300
	routingRequests = 180 // per table
	// routingDraws is how often a request is made of which a runtime fraction takes a share.
	routingDraws = 100
	// routingDrawn is for how many requests of a table this is done.
	routingDrawn = 2
	// routingShown is how many of the differences are told in full.
	routingShown = 20
)

// shortRouting reports whether a sixth of the requests is enough: all of them take a quarter of an hour under the race detector, and `make model`
// sends them without it.
func shortRouting() bool { return testing.Short() || raceEnabled }

// What routing.Find says of random requests to random tables is what Envoy does with them. Envoy's answers alone tell
// that every kind of matcher has let requests through, and has held some off; a sixth of the requests (-short) is too
// few for the rarest kinds, which Envoy's draws of runtime fractions decide.
func TestTheRouteMatcherAgreesWithEnvoy(t *testing.T) {
	version, err := exec.CommandContext(t.Context(), envoytest.Binary(t), "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, version)
	}
	if !strings.Contains(string(version), "/"+envoytest.Version+"/") {
		t.Skipf("the package has the rules of Envoy %s, which are not those of %s", envoytest.Version, version)
	}
	requests := routingRequests
	if shortRouting() {
		requests /= 6
	}
	tables := make([]*routeTable, routingTables)
	generators := make([]routeGenerator, routingTables)
	for i := range tables {
		generators[i] = routeGenerator{rand.New(rand.NewPCG(routingSeed, uint64(i)))}
		tables[i] = generators[i].table(fmt.Sprintf("table-%d", i))
	}
	dir := startRouteTables(t, tables)
	c := &routeComparison{T: t, kinds: make(map[string]*kindCount), outcomes: make(map[string]int)}
	for i, table := range tables {
		c.know(table)
		c.draws = routingDrawn
		client := &routeClient{socket: routeSocket(dir, i)}
		for n := range requests {
			c.compare(client, table, generators[i].ask(table, n%2 == 0))
		}
		client.close()
	}
	c.report()
}

// routeSocket is where a table is served.
func routeSocket(dir string, table int) string {
	return filepath.Join(dir, strconv.Itoa(table)+".sock")
}

// startRouteTables runs an Envoy with one listener for each table, and returns the folder with their sockets.
func startRouteTables(t *testing.T, tables []*routeTable) (dir string) {
	t.Helper()
	// Shorter than t.TempDir, whose path may be too long for a Unix socket.
	dir, err := os.MkdirTemp("", "holdfast-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	port, err := testbed.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := structpb.NewStruct(map[string]any{"re2.max_program_size.error_level": 32768})
	if err != nil {
		t.Fatal(err)
	}
	config := &bootstrapv3.Bootstrap{
		Admin: &bootstrapv3.Admin{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}}}},
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
			Name: "static", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: layer},
		}}},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{},
	}
	for i, table := range tables {
		config.StaticResources.Listeners = append(config.StaticResources.Listeners, routeListener(routeSocket(dir, i), table.config))
	}
	text, err := protojson.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	envoy, err := testbed.StartEnvoy(envoytest.Binary(t), file, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Kill)
	if err := envoy.Wait(limit, envoy.Ready); err != nil {
		t.Fatal(err)
	}
	return dir
}

// routeListener serves a table on a Unix socket. Every connection has the filter state that tables match.
func routeListener(socket string, table *routev3.RouteConfiguration) *listenerv3.Listener {
	state := &setstatev3.Config{OnNewConnection: []*statev3.FilterStateValue{{
		Key: &statev3.FilterStateValue_ObjectKey{ObjectKey: filterStateKey}, FactoryKey: "envoy.string",
		Value: &statev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: filterStateValue},
			}},
		}},
	}}}
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix:     "tables",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: table},
		HttpFilters:    xdstest.RouterOnly(),
		UpgradeConfigs: []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "CONNECT"}},
	}
	filter := func(name string, config proto.Message) *listenerv3.Filter {
		return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(config)}}
	}
	return &listenerv3.Listener{
		Name:    table.GetName(),
		Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
			filter("envoy.filters.network.set_filter_state", state), filter("envoy.filters.network.http_connection_manager", manager),
		}}},
	}
}

// request returns a request as the router sees it: without white space around the values of headers.
func (a *routeAsk) request() routing.Request {
	r := routing.Request{Method: a.method, Host: a.host, Path: a.path, Headers: slices.Clone(a.headers)}
	if a.https {
		r.Scheme = "https"
	}
	if len(a.params) > 0 {
		r.Path += "?" + strings.Join(a.params, "&")
	}
	if a.method == "CONNECT" {
		r.Path = ""
	}
	if len(a.cookies) > 0 {
		for cookies := range strings.SplitSeq(strings.Join(a.cookies, a.cookieSeparator), "\n") {
			r.Headers = append(r.Headers, routing.Header{Name: "cookie", Value: cookies})
		}
	}
	for i := range r.Headers {
		r.Headers[i].Value = strings.Trim(r.Headers[i].Value, " \t")
	}
	return r
}

// routeClient makes requests on a connection that stays open.
type routeClient struct {
	socket string
	conn   net.Conn
	reader *bufio.Reader
}

func (c *routeClient) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// outcomes of requests that no route takes.
const (
	noRoute  = "404"
	toTLS    = "301"
	refusing = "refused"
)

// send makes a request and returns the outcome: the virtual host and the index of the route that took it, or one of the above.
func (c *routeClient) send(r routing.Request) (outcome string, err error) {
	if c.conn == nil {
		if c.conn, err = net.Dial("unix", c.socket); err != nil {
			return "", err
		}
		c.reader = bufio.NewReader(c.conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, err := c.conn.Write(wire(r)); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(c.reader, &http.Request{Method: r.Method})
	if err != nil {
		return "", err
	}
	if r.Method != "CONNECT" {
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return "", err
		}
	}
	_ = response.Body.Close()
	if response.Close || r.Method == "CONNECT" || response.StatusCode == http.StatusBadRequest {
		c.close()
	}
	// To a gRPC request, Envoy answers with 200 and says more in the headers; 12 is "unimplemented", for 404.
	switch matched := response.Header.Get(matchedHeader); {
	case matched != "":
		return matched, nil
	case response.StatusCode == http.StatusMovedPermanently, strings.HasPrefix(response.Header.Get("location"), "https:"):
		return toTLS, nil
	case response.StatusCode == http.StatusNotFound, response.Header.Get("grpc-status") == "12":
		return noRoute, nil
	}
	return refusing + " with " + response.Status, nil
}

// wire returns a request in HTTP/1.1.
func wire(r routing.Request) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, cmp.Or(r.Path, r.Host), r.Host)
	if r.Scheme == "https" {
		out.WriteString("X-Forwarded-Proto: https\r\n")
	}
	if r.Method == "POST" || r.Method == "PUT" {
		out.WriteString("Content-Length: 0\r\n")
	}
	for _, h := range r.Headers {
		fmt.Fprintf(&out, "%s: %s\r\n", h.Name, h.Value)
	}
	out.WriteString("\r\n")
	return []byte(out.String())
}

// kindCount says what became of the routes with a kind of matcher.
type kindCount struct {
	// passable is set if routes with the kind can be passed over because of it.
	passable      bool
	taken, passed int
}

// routeComparison compares Find with Envoy.
type routeComparison struct {
	*testing.T
	kinds                              map[string]*kindCount
	outcomes                           map[string]int
	requests, drawn, refused, differed int
	draws                              int // that are left for a table
}

// domainKind returns of what kind a domain is.
func domainKind(d string) string {
	switch {
	case d == "*":
		return "domain of all hosts"
	case d[0] == '*':
		return "domain *suffix"
	case strings.HasSuffix(d, "*"):
		return "domain prefix*"
	case strings.Contains(strings.TrimPrefix(d, "[::1]"), ":"):
		return "domain with a port"
	}
	return "domain"
}

// ofVirtualHost returns the kind of the only domain of a virtual host.
func ofVirtualHost(vh *routev3.VirtualHost) []string {
	if len(vh.GetDomains()) != 1 {
		return nil
	}
	return []string{domainKind(vh.GetDomains()[0])}
}

func (c *routeComparison) kind(name string) *kindCount {
	if c.kinds[name] == nil {
		c.kinds[name] = &kindCount{}
	}
	return c.kinds[name]
}

// know notes the kinds of matchers in a table.
func (c *routeComparison) know(t *routeTable) {
	for i, routes := range t.rules {
		for _, kind := range ofVirtualHost(t.config.GetVirtualHosts()[i]) {
			c.kind(kind)
		}
		for _, rules := range routes {
			for _, rule := range rules {
				for _, kind := range rule.kinds {
					c.kind(kind).passable = c.kind(kind).passable || !rule.anything
				}
			}
		}
	}
}

// compare makes a request and compares what came of it with what Find says.
func (c *routeComparison) compare(client *routeClient, table *routeTable, a *routeAsk) {
	c.Helper()
	request := a.request()
	outcome := c.send(client, request)
	c.requests++
	if strings.HasPrefix(outcome, refusing) {
		c.refused++
		c.outcomes[outcome]++
		return
	}
	c.count(table, outcome, request)
	result := routing.Find(table.config, request)
	shares := expected(result)
	if _, ok := shares[outcome]; !ok {
		c.differ(table, request, outcome, result)
		return
	}
	if c.draws > 0 && slices.ContainsFunc(result.Candidates, func(c routing.Candidate) bool { return c.Share < 1 }) &&
		!slices.ContainsFunc(result.Candidates, func(c routing.Candidate) bool { return len(c.If) > 0 }) {
		c.draws--
		c.draw(client, table, request, result)
	}
}

// draw makes a request of which a runtime fraction takes a share again and again, and compares the shares.
func (c *routeComparison) draw(client *routeClient, table *routeTable, request routing.Request, result routing.Result) {
	c.Helper()
	c.drawn++
	counts := make(map[string]int)
	for range routingDraws {
		counts[c.send(client, request)]++
	}
	shares := expected(result)
	for outcome := range shares {
		counts[outcome] += 0 // One that never came is judged too.
	}
	for outcome, count := range counts {
		if !plausible(count, routingDraws, shares[outcome]) {
			c.differ(table, request, fmt.Sprintf("%v of %d", counts, routingDraws), result)
			return
		}
	}
}

// plausible reports whether so many of n draws have an outcome of a probability, by Chernoff's bound: it is wrong
// once in ten million times.
func plausible(count, n int, probability float64) bool {
	if probability <= 0 || probability >= 1 {
		return count == int(probability)*n
	}
	share, divergence := float64(count)/float64(n), 0.0
	if share > 0 {
		divergence += share * math.Log(share/probability)
	}
	if share < 1 {
		divergence += (1 - share) * math.Log((1-share)/(1-probability))
	}
	return float64(n)*divergence < 16
}

// send makes a request.
func (c *routeComparison) send(client *routeClient, request routing.Request) string {
	c.Helper()
	outcome, err := client.send(request)
	if err != nil {
		c.Fatalf("seed %d: %q: %v", routingSeed, wire(request), err)
	}
	return outcome
}

// expected returns the outcomes that a result allows, and their shares.
func expected(result routing.Result) map[string]float64 {
	switch {
	case result.VirtualHost == nil:
		return map[string]float64{noRoute: 1}
	case result.RedirectsToTLS:
		return map[string]float64{toTLS: 1}
	case result.Undecided != "":
		return nil
	}
	shares, rest := make(map[string]float64), 1.0
	for _, candidate := range result.Candidates {
		shares[fmt.Sprintf("%s/%d", result.VirtualHost.GetName(), candidate.Index)] += candidate.Share
		if len(candidate.If) == 0 {
			rest -= candidate.Share
		}
	}
	if rest > 1e-9 {
		shares[noRoute] = rest
	}
	return shares
}

// count counts the kinds of the matchers of the route that took a request. One before it was passed over because of
// its only matcher that does not take everything.
func (c *routeComparison) count(table *routeTable, outcome string, request routing.Request) {
	name, index, ok := strings.Cut(outcome, "/")
	if !ok {
		c.outcomes[outcome]++
		return
	}
	c.outcomes["a route"]++
	h := slices.IndexFunc(table.config.GetVirtualHosts(), func(vh *routev3.VirtualHost) bool { return vh.GetName() == name })
	at, err := strconv.Atoi(index)
	if err != nil || h < 0 {
		c.Fatalf("the answer names the route %q", outcome)
	}
	for _, kind := range ofVirtualHost(table.config.GetVirtualHosts()[h]) {
		c.kind(kind).taken++
	}
	for _, rule := range table.rules[h][at] {
		for _, kind := range rule.kinds {
			c.kind(kind).taken++
		}
	}
	if request.Path == "" {
		return // The prefix "/" does not take CONNECT either.
	}
	for _, rules := range table.rules[h][:at] {
		narrow := slices.DeleteFunc(slices.Clone(rules), func(r routeRule) bool { return r.anything })
		if len(narrow) != 1 {
			continue
		}
		for _, kind := range narrow[0].kinds {
			c.kind(kind).passed++
		}
	}
}

// differ tells a difference.
func (c *routeComparison) differ(table *routeTable, request routing.Request, outcome string, result routing.Result) {
	c.Helper()
	if c.differed++; c.differed > routingShown {
		return
	}
	name, _, _ := strings.Cut(outcome, "/")
	var told strings.Builder
	for _, vh := range table.config.GetVirtualHosts() {
		if vh.GetName() == name || vh == result.VirtualHost {
			fmt.Fprintf(&told, "%s\n", protojson.Format(vh))
		}
	}
	top := proto.CloneOf(table.config)
	top.VirtualHosts = nil
	c.Errorf("seed %d, %s: Envoy's answer is %s, want one of %v (virtual host %q by %q)\nrequest: %q\nconfiguration: %v\n%scandidates: %s\npassed: %s",
		routingSeed, table.config.GetName(), outcome, expected(result), result.VirtualHost.GetName(), result.Domain, wire(request), top, told.String(),
		candidatesOf(result), passedOf(result))
}

func candidatesOf(result routing.Result) string {
	var out []string
	for _, c := range result.Candidates {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%d with %.4g %s", c.Index, c.Share, strings.Join(c.If, " and "))))
	}
	return strings.Join(out, "; ")
}

func passedOf(result routing.Result) string {
	var out []string
	for _, p := range result.Passed {
		out = append(out, fmt.Sprintf("%d because %s", p.Index, p.Reason))
	}
	return strings.Join(out, "; ")
}

// neverTaken are the kinds that no request of this test satisfies: it has no TLS, no metadata, and one filter state.
var neverTaken = []string{"tls_context true", "dynamic_metadata inverted false", "filter_state red", "runtime_fraction of none"}

// report tells the statistics, and what never happened.
func (c *routeComparison) report() {
	c.Helper()
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.kinds)) {
		kind := c.kinds[name]
		fmt.Fprintf(&table, "%-50s taken %5d, passed %5d\n", name, kind.taken, kind.passed)
		if !shortRouting() && kind.taken == 0 && !slices.Contains(neverTaken, name) {
			c.Errorf("seed %d: no route with %q took a request", routingSeed, name)
		}
		if kind.taken > 0 && slices.Contains(neverTaken, name) {
			c.Errorf("seed %d: a route with %q took a request", routingSeed, name)
		}
		if !shortRouting() && kind.passed == 0 && kind.passable {
			c.Errorf("seed %d: no route was passed over because of %q", routingSeed, name)
		}
	}
	c.Logf("%d requests, %d of them drawn %d times; outcomes %v; %d kinds of matchers:\n%s", c.requests, c.drawn, routingDraws, c.outcomes, len(c.kinds), table.String())
	if c.refused*50 > c.requests {
		c.Errorf("seed %d: Envoy refused %d of %d requests", routingSeed, c.refused, c.requests)
	}
	if c.differed > 0 {
		c.Errorf("seed %d: %d of %d requests differ", routingSeed, c.differed, c.requests)
	}
}
