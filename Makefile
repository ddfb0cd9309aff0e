# holdfast: build, test and try it. `make` alone lists the targets.
# Needed: go, make, bash, a C compiler (for the race detector and SPIRE), python3 with pip (to fetch Envoy), Prometheus, Chromium and containerd, or
# apt-get to get them, npm (to fetch axe-core), and root for the tests in a real Kubernetes (KUBERNETES_TEST=skip goes without; PEERS_TEST=skip goes without test-peers).

VERSION       ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
ENVOY_VERSION ?= 1.40.0
FUZZTIME      ?= 10s
BENCH         ?= .
BENCHFLAGS    ?=
RESULTS       ?= bin/bench.jsonl
PLOTS         ?= docs
PYTHON        ?= python3
GOTESTFLAGS   ?=
IMAGE         ?= holdfast
IMAGEFLAGS    ?=
DIST          ?= dist
SIGNING_KEY   ?=
PLATFORMS     ?=
DIRTY         ?=
RELEASEFLAGS  ?=
# The image of Istio's proxy, of the release of istiod, out of which IMAGE-istio takes Envoy.
ISTIO_PROXY   ?= docker.io/istio/proxyv2:1.31.1-distroless
# The release of SPIRE that test/peers/spire plays with.
SPIRE_VERSION ?= 1.13.0
# The releases of Envoy that e2e-matrix tries, oldest first.
ENVOY_MATRIX  ?= 1.36.4 1.37.0 1.38.3 1.39.3 1.40.0

# ENVOY names the Envoy binary that tests and demo run. Set it to use one of your own: nothing is fetched then.
envoy_pinned := $(CURDIR)/.envoy/envoy-$(ENVOY_VERSION)
ifeq ($(strip $(ENVOY)),)
override ENVOY := $(envoy_pinned)
endif
# PROMETHEUS names a directory with prometheus and promtool; nothing is fetched then.
prometheus_fetched := $(CURDIR)/.peers/prometheus
ifeq ($(strip $(PROMETHEUS)),)
override PROMETHEUS := $(prometheus_fetched)
endif
export ENVOY PYTHON PROMETHEUS

# KUBERNETES names a directory with k8s, coredns and agnhost, ISTIO one with pilot-discovery, pilot-agent, istioctl and istio-cni, HELM one with helm;
# nothing is built then.
kubernetes_built := $(CURDIR)/.peers/kubernetes
ifeq ($(strip $(KUBERNETES)),)
override KUBERNETES := $(kubernetes_built)
endif
istio_built := $(CURDIR)/.peers/istio
ifeq ($(strip $(ISTIO)),)
override ISTIO := $(istio_built)
endif
helm_built := $(CURDIR)/.peers/helm
ifeq ($(strip $(HELM)),)
override HELM := $(helm_built)
endif
export KUBERNETES ISTIO HELM

# The modules of their own, beside the main one, which has only what the product needs: a tool in deploy, and tests. test/lint and components are no code
# but programs of others; what runs in a cluster has targets of its own, and so has test/release.
modules := $(patsubst %/go.mod,%,$(wildcard deploy/*/go.mod test/*/go.mod test/peers/*/go.mod test/*/components/go.mod))
code    := $(filter-out test/lint %/components,$(modules))
peers   := $(filter test/peers/%,$(code))
cluster := test/kubernetes test/istio
# The race detector has nothing to find in tests that look at files one after the other, and everything would be compiled once more for it.
racing  := test/bench
tests   := $(filter-out $(peers) $(cluster) test/release,$(code))

# $(call in-each,MODULES,COMMAND) runs the command in each of the modules, also when it failed in another.
in-each = @failed=; for dir in $(1); do \
  (set -x; cd $$dir && $(2)) || failed="$$failed $$dir"; \
done; \
if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

.DEFAULT_GOAL := help
# Go knows itself what of these is to be built.
.PHONY: bin/bench bin/release bin/staticcheck
.PHONY: help build envoy previous prometheus browser spire kubernetes istio helm kubernetes-test kubernetes-test-all release debian-pins test-release test-release-all test test-model test-others test-unit test-e2e test-peers e2e-matrix race lint tidy bench bench-mesh bench-mesh-scale bench-check bench-go fuzz demo demo-mesh image image-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-19s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Variables: ENVOY=path of an Envoy of your own, ENVOY_VERSION=$(ENVOY_VERSION) (pinned in test/envoy/),"
	@echo "  PROMETHEUS=directory of prometheus and promtool, CHROMIUM=path of a browser, KUBERNETES_TEST=skip, PEERS_TEST=skip,"
	@echo "  FUZZTIME=$(FUZZTIME), BENCH=regexp, GOTESTFLAGS=flags for go test, VERSION=$(VERSION),"
	@echo "  RESULTS=$(RESULTS), PLOTS=$(PLOTS) (a directory), BENCHFLAGS=flags for bin/bench (-quick, -cases regexp, -rounds n, …),"
	@echo "  IMAGE=$(IMAGE), IMAGEFLAGS=flags for docker build, ENGINE=docker or podman, ISTIO_PROXY=$(ISTIO_PROXY),"
	@echo "  DIST=$(DIST), SIGNING_KEY=PEM file, PLATFORMS=linux/amd64,… (of release; default all), DIRTY=1, RELEASEFLAGS=flags for bin/release"

build: ## build the static binaries bin/holdfast, bin/holdfast-mesh and bin/holdfast-injector
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/holdfast ./cmd/holdfast-mesh ./cmd/holdfast-injector

envoy: $(if $(filter $(envoy_pinned),$(ENVOY)),$(envoy_pinned)) ## fetch the pinned Envoy into .envoy/
	@"$(ENVOY)" --version

$(CURDIR)/.envoy/envoy-%: test/envoy/%.txt
	test/envoy/fetch $* $@

test/envoy/%.txt:
	@echo "Envoy $* is not pinned: $@ does not exist (see test/envoy/fetch)" >&2; exit 1

# The last version that wrote format 1 of the state.
previous := 96c94e4

# The last release; before the first one, the commit before it. Tests exchange its programs with those of today, both ways
# (docs/compatibility.md). A release sets it (docs/releasing.md).
released := f4c038e

before      := $(sort bin/holdfast-$(previous) bin/holdfast-$(released))
before_mesh := bin/holdfast-mesh-$(released)

previous: $(before) $(before_mesh) ## build the versions before, for the tests of upgrades and downgrades

$(before): bin/holdfast-%:
	test/previous/build $* $@ holdfast
$(before_mesh): bin/holdfast-mesh-%:
	test/previous/build $* $@ holdfast-mesh

prometheus: $(if $(filter $(prometheus_fetched),$(PROMETHEUS)),$(prometheus_fetched)) ## put Prometheus into .peers/: that of PATH, or Debian's
	@"$(PROMETHEUS)/promtool" --version

$(prometheus_fetched):
	test/prometheus/fetch $@

browser: $(CURDIR)/.peers/browser ## put Chromium and axe-core into .peers/: that of CHROMIUM or PATH, or as root Debian's

$(CURDIR)/.peers/browser:
	test/page/fetch $@

spire: $(CURDIR)/.peers/spire-$(SPIRE_VERSION) ## build the pinned SPIRE into .peers/: about six minutes without caches

$(CURDIR)/.peers/spire-%:
	test/peers/spire/build $* $@

# What is only computed takes a quarter of an hour, beside tests that mostly wait and come first.
test: build envoy previous prometheus browser ## every test, with the race detector: units, real Envoy, end to end; and test-model, test-release, test-peers, kubernetes-test
	@$(MAKE) --no-print-directory test-model & model=$$!; \
	$(MAKE) --no-print-directory test-others; code=$$?; \
	wait $$model || code=2; exit $$code

# These try some of what they owe under the race detector (-short), and all of it without: random histories of models, and
# a fault at each byte of a file.
exhaustive := ./agent/store ./agent/group ./downstream/session ./internal/inject
test-model: ## the tests that have short forms in their long ones, without the race detector, behind everything else that wants the processor
	GOGC=800 nice -n 19 go test -timeout 60m $(GOTESTFLAGS) ./test/model/... # a third less time than with GOGC=100
	nice -n 19 go test -timeout 60m $(GOTESTFLAGS) $(exhaustive)
	nice -n 19 go test -timeout 30m $(GOTESTFLAGS) -run TestTheRouteMatcherAgreesWithEnvoy ./test/e2e

# The test cache does not know of files outside of a module: -count=1 for those that look at deploy/ and at the binary.
test-others:
	go test -race -short -timeout 30m $(GOTESTFLAGS) ./...
	$(call in-each,$(racing),go test -race -count=1 -timeout 30m $(GOTESTFLAGS) ./...)
	$(call in-each,$(filter-out $(racing),$(tests)),go test -count=1 -timeout 30m $(GOTESTFLAGS) ./...)
	@$(MAKE) --no-print-directory test-release
ifneq ($(PEERS_TEST),skip)
	@$(MAKE) --no-print-directory test-peers
endif
	@$(MAKE) --no-print-directory kubernetes-test

test-unit: envoy ## the tests of the packages, without test/e2e and without the race detector
	go test $(GOTESTFLAGS) $$(go list ./... | grep -v /test/)

test-e2e: build envoy previous prometheus ## the end-to-end tests alone, never from the test cache
	go test -count=1 -timeout 30m $(GOTESTFLAGS) ./test/e2e/...

test-peers: build envoy previous spire ## holdfast between programs of others: go-control-plane, grpc-go, SPIRE, istiod, OpenTelemetry; never from the test cache
	$(call in-each,$(peers),go test -count=1 -timeout 15m $(GOTESTFLAGS) ./...)

kubernetes: $(if $(filter $(kubernetes_built),$(KUBERNETES)),$(kubernetes_built)) ## build Kubernetes, etcd and CoreDNS into .peers/: about six minutes without caches

$(kubernetes_built): test/kubernetes/components/build $(wildcard test/kubernetes/components/go.* test/kubernetes/components/*/*.go)
	test/kubernetes/components/build $@

istio: $(if $(filter $(istio_built),$(ISTIO)),$(istio_built)) ## build istiod, pilot-agent, istioctl and istio-cni into .peers/: about four minutes without caches

$(istio_built): test/istio/components/build $(wildcard test/istio/components/go.*)
	test/istio/components/build $@

helm: $(if $(filter $(helm_built),$(HELM)),$(helm_built)) ## build Helm into .peers/: about four minutes without caches

$(helm_built): test/chart/build $(wildcard test/chart/go.*)
	test/chart/build $@

# RELEASES names the folder in which test/release has left a release, whose images run in the cluster; otherwise one is made.
releases := $(CURDIR)/.peers/releases

# What continuous integration has time for.
kubernetes-test: SHORT := -short
kubernetes-test: kubernetes-test-all ## deploy/ in a real Kubernetes of one node, and with a real istiod in it: as root; KUBERNETES_TEST=skip goes without

kubernetes-test-all: envoy bin/release ## the same with every event and every shape: forty minutes
ifneq ($(KUBERNETES_TEST),skip)
	test/kubernetes/packages
	@nice -n 19 $(MAKE) --no-print-directory kubernetes istio helm # continuous integration runs other tests beside
endif
	$(if $(SHORT),,cd test/kubernetes/components && go test -count=1 $(GOTESTFLAGS) ./validation)
	$(if $(RELEASES),,rm -rf $(releases) && bin/release -dist $(releases)/dist -version v0.1.0 -platforms linux/$$(go env GOARCH) -dirty -newer-debian)
	$(call in-each,$(cluster),RELEASES=$(or $(RELEASES),$(releases)) go test -count=1 -timeout 120m -v $(SHORT) $(GOTESTFLAGS) .)

# The Go of the Dockerfile: another one could compress otherwise.
release_go := go$(shell sed -n 's/^ARG GO_VERSION=//p' Dockerfile)
bin/release:
	@cd deploy/release && GOTOOLCHAIN=$(release_go) CGO_ENABLED=0 go build -trimpath -o '$(CURDIR)/$@' .

release: bin/release ## what a release page holds, into DIST: VERSION=v0.1.0, and SIGNING_KEY=file, PLATFORMS=list, DIRTY=1 (docs/releasing.md)
ifneq ($(origin VERSION),file)
	bin/release -version '$(VERSION)' -dist '$(DIST)' -signing-key '$(SIGNING_KEY)' -platforms '$(PLATFORMS)' $(if $(DIRTY),-dirty) $(RELEASEFLAGS)
else
	@echo 'make release: no version: give one, as in `make release VERSION=v0.1.0`' >&2; exit 1
endif

debian-pins: bin/release ## pin the packages of Debian 12 in the image with Envoy that its archive has now, before a release (docs/releasing.md)
	bin/release -pin-debian

# Without -short everything is built, and arm64 is emulated for minutes.
test-release: SHORT := -short
test-release: test-release-all ## the packages, images and archives of a release, made, installed and run: about four minutes; as root

test-release-all: build bin/release envoy ## the same for all platforms, and more of it on arm64: a quarter of an hour
	test/release/packages
	cd test/release && go test -count=1 -timeout 60m -v $(SHORT) $(GOTESTFLAGS) .

e2e-matrix: build previous prometheus ## the end-to-end tests with every Envoy of ENVOY_MATRIX
	@set -e; for v in $(ENVOY_MATRIX); do \
	  $(MAKE) --no-print-directory envoy ENVOY= ENVOY_VERSION=$$v; \
	  echo "end to end with Envoy $$v"; \
	  ENVOY=$(CURDIR)/.envoy/envoy-$$v go test -count=1 -timeout 30m $(GOTESTFLAGS) ./test/e2e/...; \
	done

race: envoy ## the tests of the packages three times in random order, with the race detector
	go test -race -shuffle=on -count=3 -timeout 30m $(GOTESTFLAGS) $$(go list ./... | grep -v /test/)

bin/staticcheck:
	@cd test/lint && go build -o '$(CURDIR)/$@' honnef.co/go/tools/cmd/staticcheck

lint: bin/staticcheck ## gofmt, go vet, staticcheck, in every module
	@unformatted=$$(gofmt -l .) || exit 1; if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	bin/staticcheck ./...
	$(call in-each,$(code),go vet ./... && '$(CURDIR)/bin/staticcheck' ./...)

tidy: ## go mod tidy in every module; after a change of go.mod the others need it
	go mod tidy
	$(call in-each,$(modules),go mod tidy)

bin/bench:
	@cd test/bench && go build -o '$(CURDIR)/$@' .

bench: build bin/bench ## what holdfast costs, against no agent, a byte pipe and a bare gRPC relay: a table, RESULTS, plots
	bin/bench -holdfast bin/holdfast -out '$(RESULTS)' -plots '$(PLOTS)' $(BENCHFLAGS)

bench-mesh: build ## holdfast-mesh beside istiod, with simulated sidecars: MESHFLAGS=flags for test/bench/mesh; builds istiod, about five minutes once
	cd test/bench && go build -o '$(CURDIR)/bin/bench-mesh' ./mesh
	cd test/peers/istio && go build -o '$(CURDIR)/bin/istiod' ./serve
	@for form in delta sotw; do for rounds in 1 2; do \
	  echo "holdfast-mesh, $$form:"; \
	  bin/bench-mesh -form $$form $(MESHFLAGS) -- bin/holdfast-mesh serve --config {config} --listen {xds} --admin '' --log-level error || exit 1; \
	  echo "istiod, $$form:"; \
	  PILOT_MAX_REQUESTS_PER_SECOND=100000 PILOT_ENABLE_METADATA_EXCHANGE=false PILOT_ENABLE_ALPN_FILTER=false \
	    bin/bench-mesh -form $$form $(MESHFLAGS) -- bin/istiod {config} {xds} 2>/dev/null || exit 1; \
	done; done; \
	echo "holdfast-mesh, delta, virtual hosts one by one:"; \
	bin/bench-mesh -vhds $(MESHFLAGS) -- bin/holdfast-mesh serve --config {config} --listen {xds} --admin '' --log-level error

bench-mesh-scale: build ## how the cost of holdfast-mesh grows with proxies, services and replicas, on a real etcd: a table, RESULTS, plots; SCALEFLAGS=flags for test/bench/meshscale (-quick: two minutes, else about 25)
	cd test/bench && go build -o '$(CURDIR)/bin/bench-mesh-scale' ./meshscale
	bin/bench-mesh-scale -mesh bin/holdfast-mesh -out '$(RESULTS)' -plots '$(PLOTS)' $(SCALEFLAGS)

bench-check: bin/bench ## how two results files of bench differ: OLD=file NEW=file
	@bin/bench -check '$(OLD)' '$(NEW)'

bench-go: ## the Go benchmarks that match BENCH
	go test -run '^$$' -bench '$(BENCH)' -benchmem $(GOTESTFLAGS) ./...

fuzz: ## each fuzz target for FUZZTIME
	@set -e; for dir in $$(grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -d' ' -f2); do \
	    echo "$$dir $$target"; \
	    go test -C $$dir -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $(GOTESTFLAGS) .; \
	  done; \
	done

demo: build envoy ## the product in under a minute, with a real Envoy
	go run ./test/demo

demo-mesh: build envoy ## holdfast-mesh in under a minute: a canary, a fault, a drain, outages, with real agents and Envoys
	go run ./test/demo-mesh

image: ## the images IMAGE:VERSION, with Envoy inside IMAGE-envoy:VERSION, with Istio's Envoy IMAGE-istio:VERSION, IMAGE-mesh:VERSION and IMAGE-injector:VERSION, with docker or podman
	@engine=; for e in $(or $(ENGINE),docker podman); do \
	  if command -v $$e >/dev/null && $$e info >/dev/null 2>&1; then engine=$$e; break; fi; done; \
	if [ -z "$$engine" ]; then echo "make image: neither docker nor podman is at hand with a running engine (make image-check needs none)" >&2; exit 1; fi; \
	set -ex; revision=$$(git rev-parse HEAD 2>/dev/null || echo unknown); \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) -t $(IMAGE):$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --target with-envoy -t $(IMAGE)-envoy:$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --build-arg ENVOY_IMAGE=$(ISTIO_PROXY) --target with-envoy -t $(IMAGE)-istio:$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --target mesh -t $(IMAGE)-mesh:$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --target injector -t $(IMAGE)-injector:$(VERSION) .

image-check: prometheus ## what the Dockerfile does, without an engine, for amd64 and arm64; and the manifests of deploy/
	cd test/deploy && go test -count=1 -timeout 30m $(GOTESTFLAGS) .

clean: ## remove what was built and fetched
	rm -rf bin .envoy .peers
