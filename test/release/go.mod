module github.com/holdfast-xds/holdfast/test/release

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1
	github.com/holdfast-xds/holdfast v0.0.0
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/holdfast-xds/holdfast => ../..
