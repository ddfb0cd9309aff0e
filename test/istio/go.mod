module github.com/holdfast-xds/holdfast/test/istio

go 1.26.0

require (
	github.com/holdfast-xds/holdfast/test/kubernetes v0.0.0
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/holdfast-xds/holdfast v0.0.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace (
	github.com/holdfast-xds/holdfast => ../..
	github.com/holdfast-xds/holdfast/test/kubernetes => ../kubernetes
)
