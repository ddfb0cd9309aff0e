# holdfast: build, test and try it. `make` alone lists the targets, and CONTRIBUTING.md says what each tier of tests is for.
# Needed for build, check, test and demo: go, make, bash, git, a C compiler (for the race detector), and python3 with pip (to fetch Envoy).
# The other parts of test-all say what else they need: Prometheus, Chromium, npm, containerd, root, or apt-get to get them.

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

ifneq ($(words $(CURDIR)),1)
$(error make does not work in a directory whose path has a space: $(CURDIR))
endif

# One way to compile: tests run what ships, and build, vet and tests share the compiler's work. Only the race detector compiles once more.
# The tags leave out what nothing calls, a third of the size: golang.org/x/net/trace, which turns the linker's removal of dead code off (grpcnotrace),
# and generated validation, in whose place internal/fieldrules is (disable_pgv).
override GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=false -tags=grpcnotrace,disable_pgv)
export CGO_ENABLED := 0
export GOFLAGS

# Pinned programs of others, which take minutes to build, are kept outside of the checkout under names that change with everything that they
# are made of. `make clean` leaves them; `make clean-pinned` removes them.
PINNED ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/holdfast
go_is  := $(shell go env GOVERSION GOOS GOARCH | tr '\n' ' ')
# $(call pinned,NAME,FILES) is the directory of a program that FILES pin and build.
pinned  = $(PINNED)/$(1)-$(shell { echo '$(go_is)'; cat $(2); } | sha256sum | cut -c1-16)

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

# KUBERNETES names a directory with k8s, coredns and agnhost, ISTIO one with pilot-discovery, pilot-agent, istioctl and istio-cni, HELM one with
# helm, SPIRE one with spire-server and spire-agent; nothing is built then.
kubernetes_built := $(call pinned,kubernetes,test/kubernetes/components/build $(wildcard test/kubernetes/components/go.* test/kubernetes/components/*/*.go))
ifeq ($(strip $(KUBERNETES)),)
override KUBERNETES := $(kubernetes_built)
endif
istio_built := $(call pinned,istio,test/istio/components/build $(wildcard test/istio/components/go.*))
ifeq ($(strip $(ISTIO)),)
override ISTIO := $(istio_built)
endif
helm_built := $(call pinned,helm,test/chart/build $(wildcard test/chart/go.*))
ifeq ($(strip $(HELM)),)
override HELM := $(helm_built)
endif
spire_built := $(call pinned,spire-$(SPIRE_VERSION),test/peers/spire/build)
ifeq ($(strip $(SPIRE)),)
override SPIRE := $(spire_built)
endif
export KUBERNETES ISTIO HELM SPIRE

# The modules of their own, beside the main one, which has only what the product needs: a tool in deploy, and tests. test/tools and components are no code
# but programs of others.
modules := $(patsubst %/go.mod,%,$(wildcard deploy/*/go.mod test/*/go.mod test/peers/*/go.mod test/*/components/go.mod))
code    := $(filter-out test/tools %/components,$(modules))
peers   := $(filter test/peers/%,$(code))
cluster := test/kubernetes test/istio

# $(call in-each,MODULES,COMMAND) runs the command in each of the modules, also when it failed in another.
in-each = @failed=; for dir in $(1); do \
  (set -x; cd $$dir && $(2)) || failed="$$failed $$dir"; \
done; \
if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

# $(call gotest,FLAGS AND PACKAGES) is `go test`, whose output is a line for each package and what failed, and at the end what was skipped and a
# sum. The times of the tests go into the directory PART_TIMES, if test/parts sets it.
gotestsum := $(CURDIR)/bin/gotestsum
gotest     = $(gotestsum) --format pkgname-and-test-fails --format-hide-empty-pkg $(if $(PART_TIMES),--jsonfile-timing-events "$(PART_TIMES)/$$$$-$$RANDOM.json") -- $(GOTESTFLAGS) $(1)
SHELL     := bash

# Istio's own code, which its module has beside ours, calls generated validation.
of_authors := -trimpath -buildvcs=false -tags=grpcnotrace
flags_of    = GOFLAGS="$$(case $$dir in test/peers/istio) echo '$(of_authors)';; *) echo '$(GOFLAGS)';; esac)"

# The packages of the main module with unit tests: not those below test/, which need bin/, Envoy, or minutes.
units = $$(go list ./... | grep -v /test/)

.DEFAULT_GOAL := help
# Go knows itself what of these is to be built.
.PHONY: bin/bench bin/release bin/staticcheck bin/gotestsum bin/parts
.PHONY: help build envoy previous prometheus browser spire kubernetes istio helm release debian-pins check format vet unit race test e2e test-all \
  test-all-status minutes lint tidy model modules deploy deploy-short page peers peers-short race-all e2e-race e2e-oldest test-release test-release-short cluster cluster-short \
  demo-20 demo-5 bench bench-mesh bench-mesh-fleet bench-mesh-scale bench-check bench-go fuzz demo demo-mesh image clean clean-pinned

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-19s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Variables: ENVOY=path of an Envoy of your own, ENVOY_VERSION=$(ENVOY_VERSION) (pinned in test/envoy/),"
	@echo "  PARTS=parts of test-all, PINNED=$(PINNED), GOTESTFLAGS=flags for go test,"
	@echo "  PROMETHEUS, KUBERNETES, ISTIO, HELM, SPIRE=directories of programs of your own, CHROMIUM=path of a browser,"
	@echo "  FUZZTIME=$(FUZZTIME), BENCH=regexp, VERSION=$(VERSION),"
	@echo "  RESULTS=$(RESULTS), PLOTS=$(PLOTS) (a directory), BENCHFLAGS=flags for bin/bench (-quick, -cases regexp, -rounds n, …),"
	@echo "  IMAGE=$(IMAGE), IMAGEFLAGS=flags for docker build, ENGINE=docker or podman, ISTIO_PROXY=$(ISTIO_PROXY),"
	@echo "  DIST=$(DIST), SIGNING_KEY=PEM file, PLATFORMS=linux/amd64,… (of release; default all), DIRTY=1, RELEASEFLAGS=flags for bin/release"

build: ## build the static binaries bin/holdfast, bin/holdfast-mesh and bin/holdfast-injector
	go build -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/holdfast ./cmd/holdfast-mesh ./cmd/holdfast-injector

envoy: $(if $(filter $(envoy_pinned),$(ENVOY)),$(envoy_pinned)) ## fetch the pinned Envoy into .envoy/
	@"$(ENVOY)" --version

$(CURDIR)/.envoy/envoy-%: test/envoy/%.txt
	test/envoy/fetch $* $@

test/envoy/%.txt:
	@echo "Envoy $* is not pinned: $@ does not exist (see test/envoy/fetch)" >&2; exit 1

# The last release; before the first one, the commit before it. Tests exchange its programs with those of today, both ways
# (docs/compatibility.md). A release sets it (docs/releasing.md).
released := f4c038e

before := bin/holdfast-$(released) bin/holdfast-mesh-$(released)

previous: $(before) ## build the last release, for the tests of upgrades and downgrades

# Without our tags: the code of then may call what they leave out.
bin/holdfast-$(released):
	GOFLAGS='-trimpath -buildvcs=false' test/previous/build $(released) $@ holdfast
bin/holdfast-mesh-$(released):
	GOFLAGS='-trimpath -buildvcs=false' test/previous/build $(released) $@ holdfast-mesh

prometheus: $(if $(filter $(prometheus_fetched),$(PROMETHEUS)),$(prometheus_fetched)) ## put Prometheus into .peers/: that of PATH, or Debian's
	@"$(PROMETHEUS)/promtool" --version

$(prometheus_fetched):
	test/prometheus/fetch $@

browser: $(CURDIR)/.peers/browser ## put Chromium and axe-core into .peers/: that of CHROMIUM or PATH, or as root Debian's

$(CURDIR)/.peers/browser:
	test/page/fetch $@

spire: $(if $(filter $(spire_built),$(SPIRE)),$(spire_built)) ## build the pinned SPIRE: about six minutes without caches
	@echo 'SPIRE=$(SPIRE)'

$(spire_built):
	test/peers/spire/build $(SPIRE_VERSION) $@

# The tiers: check before a push, test for a change that is done, test-all before an issue is, and .ci/run on what is submitted.

check: format vet bin/gotestsum ## gofmt, go vet, staticcheck and the short tests of the packages: before a push; no root, no Envoy
	ENVOY=none $(call gotest,-short $(units) ./test/parts)

format:
	@unformatted=$$(gofmt -l .) || exit 1; if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi

vet: bin/staticcheck
	go vet ./...
	bin/staticcheck ./...

unit: envoy bin/gotestsum ## the short tests of the packages, also those that ask an Envoy
	$(call gotest,-short $(units) ./test/parts)

race: envoy bin/gotestsum ## the same under the race detector, of the packages in which something is concurrent
	CGO_ENABLED=1 $(call gotest,-race -short -timeout 20m $$(test/racing))

e2e: build envoy bin/gotestsum ## holdfast and holdfast-mesh as processes, with a real Envoy: GOTESTFLAGS=-run=REGEXP for some
	$(call gotest,-short -count=1 -timeout 20m ./test/e2e/...)

test: unit race e2e ## what a change has to pass: no root, and nothing is installed

# The parts of test-all. Each is a target of its own, and says what it needs that test does not need.
matrix := $(addprefix e2e-,$(ENVOY_MATRIX))
parts  := check race-all e2e-race model lint modules deploy peers $(filter-out e2e-$(ENVOY_VERSION),$(matrix)) demo-20 demo-mesh page test-release cluster
PARTS  ?= $(parts)

test-all: bin/parts ## everything, part by part, from where it stopped: PARTS='e2e-race peers' for some; parts that passed on this tree are not run again
	bin/parts run $(PARTS)

test-all-status: bin/parts ## which parts of test-all passed, when, and whether on this tree
	@bin/parts status $(PARTS)

minutes: bin/parts ## run PARTS and write their minutes into CONTRIBUTING.md; COLD=1 with empty caches of Go; RUN= only writes
ifneq ($(origin RUN),undefined)
else ifneq ($(COLD),)
	@cache=$$(mktemp -d); trap 'chmod -R u+w "$$cache"; rm -rf "$$cache"' EXIT; COLD=1 GOCACHE=$$cache/go STATICCHECK_CACHE=$$cache/staticcheck bin/parts again $(PARTS)
else
	bin/parts again $(PARTS)
endif
	bin/parts table check test unit race e2e $(filter-out check,$(parts)) e2e-oldest demo-5 peers-short deploy-short cluster-short

race-all: envoy bin/gotestsum
	CGO_ENABLED=1 $(call gotest,-race -short -timeout 30m $(units) ./test/model/...)

e2e-race: build envoy previous prometheus bin/gotestsum
	CGO_ENABLED=1 $(call gotest,-race -count=1 -timeout 40m ./test/e2e/...)

# SHORT=-short, which the targets ...-short and e2e-oldest set, needs less and is done sooner.
$(matrix): e2e-%: build $(if $(SHORT),,previous prometheus) bin/gotestsum
	@$(MAKE) --no-print-directory envoy ENVOY= ENVOY_VERSION=$*
	export ENVOY=$(CURDIR)/.envoy/envoy-$*; $(call gotest,$(SHORT) -count=1 -timeout $(if $(SHORT),20m,40m) ./test/e2e/...)

# With the oldest Envoy that is supported, for what depends on Envoy's version.
e2e-oldest:
	@$(MAKE) --no-print-directory e2e-$(firstword $(ENVOY_MATRIX)) SHORT=-short

e2e-matrix: $(matrix) ## the end-to-end tests with every Envoy of ENVOY_MATRIX

# The tests that have short forms in their long ones: random histories of models, and a fault at each byte of a file.
exhaustive := ./agent/store ./agent/group ./downstream/session ./internal/inject ./mesh/config/etcd ./mesh/generate
model: build envoy bin/gotestsum ## 100,000 random sequences of the models, and what else has a long form
	GOGC=800 $(call gotest,-timeout 60m ./test/model/...) # a third less time than with GOGC=100
	$(call gotest,-timeout 60m $(exhaustive))
	$(call gotest,-count=1 -timeout 30m -run TestTheRouteMatcherAgreesWithEnvoy ./test/e2e)
	$(call gotest,-tags=grpcnotrace ./internal/fieldrules) # with the generated validation, to compare with

lint: bin/staticcheck ## go vet and staticcheck in the other modules
	$(call in-each,$(code),export $(flags_of) && go vet ./... && '$(CURDIR)/bin/staticcheck' ./...)

modules: bin/gotestsum
	$(call in-each,test/bench,CGO_ENABLED=1 $(call gotest,-race -count=1 -timeout 30m ./...))
	$(call in-each,deploy/release test/istioapi test/kubernetesapi,$(call gotest,-count=1 -timeout 30m ./...))

deploy: build envoy prometheus bin/gotestsum ## the manifests, the chart, the Dockerfile and the alerts of deploy/, without a cluster: with Prometheus
	$(call in-each,test/deploy test/chart,$(call gotest,-count=1 -timeout 30m $(SHORT) ./...))

deploy-short: ## the same without the image of another architecture
	@$(MAKE) --no-print-directory deploy SHORT=-short

page: build envoy browser bin/gotestsum ## the page in a browser: with Chromium and npm
	$(call in-each,test/page,$(call gotest,-count=1 -timeout 30m ./...))

peers: build envoy $(if $(SHORT),,previous) spire bin/gotestsum ## holdfast between programs of others: go-control-plane, grpc-go, SPIRE, istiod, etcd, OpenTelemetry, the conformance suite of the Gateway API
	$(call in-each,$(peers),$(flags_of) $(call gotest,$(SHORT) -count=1 -timeout $(if $(SHORT),25m,30m) ./...))

peers-short: ## the same without what takes long
	@$(MAKE) --no-print-directory peers SHORT=-short

kubernetes: $(if $(filter $(kubernetes_built),$(KUBERNETES)),$(kubernetes_built)) ## build the pinned Kubernetes, etcd and CoreDNS: about six minutes without caches
	@echo 'KUBERNETES=$(KUBERNETES)'

$(kubernetes_built):
	test/kubernetes/components/build $@

istio: $(if $(filter $(istio_built),$(ISTIO)),$(istio_built)) ## build the pinned istiod, pilot-agent, istioctl and istio-cni: about four minutes without caches
	@echo 'ISTIO=$(ISTIO)'

$(istio_built):
	test/istio/components/build $@

helm: $(if $(filter $(helm_built),$(HELM)),$(helm_built)) ## build the pinned Helm: about four minutes without caches
	@echo 'HELM=$(HELM)'

$(helm_built):
	test/chart/build $@

# RELEASES names the folder in which test/release has left a release, whose images run in the cluster; otherwise one is made.
releases := $(CURDIR)/.peers/releases

cluster: envoy bin/release bin/gotestsum ## deploy/ in a real Kubernetes of one node, and with a real istiod in it, every event with every shape: as root, with containerd
	test/kubernetes/packages
	@nice -n 19 $(MAKE) --no-print-directory kubernetes istio helm # continuous integration runs other tests beside
ifeq ($(SHORT),)
	$(call in-each,test/kubernetes/components,$(call gotest,-count=1 ./validation))
endif
	$(if $(RELEASES),,rm -rf '$(releases)' && bin/release -dist '$(releases)/dist' -version v0.1.0 -platforms linux/$$(go env GOARCH) -dirty -newer-debian)
	$(call in-each,$(cluster),RELEASES='$(or $(RELEASES),$(releases))' $(call gotest,-count=1 -timeout 120m $(SHORT) .))

cluster-short: ## the same with fewer events and shapes
	@$(MAKE) --no-print-directory cluster SHORT=-short

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

test-release: build bin/release envoy bin/gotestsum ## the packages, images and archives of a release, for all platforms: made twice, installed, run, on arm64 too; as root
	test/release/packages
	$(call in-each,test/release,$(call gotest,-count=1 -timeout 60m $(SHORT) .))

test-release-short: ## the same for one platform
	@$(MAKE) --no-print-directory test-release SHORT=-short

# Programs of others that checks and tests need.
bin/staticcheck bin/gotestsum: bin/%:
	@cd test/tools && go build -o '$(CURDIR)/$@' $(if $(filter staticcheck,$*),honnef.co/go/tools/cmd/staticcheck,gotest.tools/gotestsum)

bin/parts:
	@go build -o $@ ./test/parts

tidy: ## go mod tidy in every module; after a change of go.mod the others need it
	go mod tidy
	$(call in-each,$(modules),go mod tidy)

bin/bench:
	@cd test/bench && go build -o '$(CURDIR)/$@' .

bench: build bin/bench ## what holdfast costs, against no agent, a byte pipe and a bare gRPC relay: a table, RESULTS, plots
	bin/bench -holdfast bin/holdfast -out '$(RESULTS)' -plots '$(PLOTS)' $(BENCHFLAGS)

# The fleets of bench-mesh, each with the flags of test/bench/mesh: one namespace; ten, each sidecar a workload of a service of its own; the same with ten times as many services.
MESHFLEETS ?= -namespaces=1 -namespaces=10,-workloads -namespaces=10,-workloads,-services=10000
bench-mesh: build ## holdfast-mesh beside istiod, with simulated sidecars: MESHFLAGS=flags for test/bench/mesh, MESHFLEETS=the flags of each fleet, with commas; builds istiod, about five minutes once
	cd test/bench && go build -o '$(CURDIR)/bin/bench-mesh' ./mesh
	cd test/peers/istio && GOFLAGS='$(of_authors)' go build -o '$(CURDIR)/bin/istiod' ./serve
	@for fleet in $(MESHFLEETS); do flags=$$(echo $$fleet | tr , ' '); for form in delta sotw; do for rounds in 1 2; do \
	  echo "holdfast-mesh, $$form, $$flags:"; \
	  bin/bench-mesh -form $$form $$flags $(MESHFLAGS) -- bin/holdfast-mesh serve --config {config} --listen {xds} --admin '' --log-level error || exit 1; \
	  echo "istiod, $$form, $$flags:"; \
	  PILOT_MAX_REQUESTS_PER_SECOND=100000 PILOT_ENABLE_METADATA_EXCHANGE=false PILOT_ENABLE_ALPN_FILTER=false \
	    bin/bench-mesh -form $$form $$flags $(MESHFLAGS) -- bin/istiod {config} {xds} 2>/dev/null || exit 1; \
	done; done; done; \
	echo "holdfast-mesh, delta, virtual hosts one by one:"; \
	bin/bench-mesh -vhds $(MESHFLAGS) -- bin/holdfast-mesh serve --config {config} --listen {xds} --admin '' --log-level error

bench-mesh-fleet: build ## the fleets of bench-mesh with holdfast-mesh alone, Delta: two minutes
	cd test/bench && go build -o '$(CURDIR)/bin/bench-mesh' ./mesh
	@for fleet in $(MESHFLEETS); do flags=$$(echo $$fleet | tr , ' '); echo "holdfast-mesh, $$flags:"; \
	  bin/bench-mesh $$flags $(MESHFLAGS) -- bin/holdfast-mesh serve --config {config} --listen {xds} --admin '' --log-level error || exit 1; \
	done

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

# A demo that fails one time in seven is broken.
demo-5 demo-20: demo-%: build envoy
	@go build -o bin/demo ./test/demo
	@for run in $$(seq $*); do echo "==> demo, run $$run of $*"; bin/demo || exit 1; done

image: ## the images IMAGE:VERSION, with Envoy inside IMAGE-envoy:VERSION, with Istio's Envoy IMAGE-istio:VERSION, IMAGE-mesh:VERSION and IMAGE-injector:VERSION, with docker or podman
	@engine=; for e in $(or $(ENGINE),docker podman); do \
	  if command -v $$e >/dev/null && $$e info >/dev/null 2>&1; then engine=$$e; break; fi; done; \
	if [ -z "$$engine" ]; then echo "make image: neither docker nor podman is at hand with a running engine (make deploy tries the Dockerfile without one)" >&2; exit 1; fi; \
	set -ex; revision=$$(git rev-parse HEAD 2>/dev/null || echo unknown); \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) -t $(IMAGE):$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --target with-envoy -t $(IMAGE)-envoy:$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --build-arg ENVOY_IMAGE=$(ISTIO_PROXY) --target with-envoy -t $(IMAGE)-istio:$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --target mesh -t $(IMAGE)-mesh:$(VERSION) .; \
	$$engine build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$revision $(IMAGEFLAGS) --target injector -t $(IMAGE)-injector:$(VERSION) .

clean: ## remove what was built and fetched in the checkout
	rm -rf bin .envoy .peers .parts

clean-pinned: ## remove what was built of other projects, also by other checkouts
	rm -rf '$(PINNED)'/{kubernetes,istio,helm,spire,build}[-.]*
