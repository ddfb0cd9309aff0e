# The images of holdfast. `docker build .` makes the agent alone; --target with-envoy
# adds Envoy, for `holdfast run -- envoy …`; --target mesh is the control plane, --target injector the webhook. test/deploy runs the RUN lines of the stage
# "build" without an engine, so what they need is go and a shell with coreutils.
#
# The agent's image is made from scratch rather than from distroless: the binary is
# static and asks for nothing but the authorities of TLS and a name for its user, so
# there is no package in it that anybody would have to update.

ARG GO_VERSION=1.26.8
ARG ENVOY_IMAGE=docker.io/envoyproxy/envoy:distroless-v1.40.0

# Always of the machine that builds: Go compiles for the others.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:${GO_VERSION} AS build
WORKDIR /src
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=unknown
# What becomes of the image: /out, but for test/deploy.
ARG ROOTFS=/out
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags=grpcnotrace,disable_pgv \
    -ldflags "-s -w -X main.version=$VERSION" -o $ROOTFS/usr/local/bin/ ./cmd/holdfast ./cmd/holdfast-mesh ./cmd/holdfast-injector
RUN mkdir -p $ROOTFS/etc/ssl/certs $ROOTFS/usr/share/doc/holdfast && \
    cp /etc/ssl/certs/ca-certificates.crt $ROOTFS/etc/ssl/certs/ca-certificates.crt && \
    cp LICENSE $ROOTFS/usr/share/doc/holdfast/LICENSE && \
    printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' > $ROOTFS/etc/passwd && \
    printf 'root:x:0:\nnonroot:x:65532:\n' > $ROOTFS/etc/group
# For who mounts nothing: the sockets are in the one by default, and state may be put in the other.
RUN mkdir -p $ROOTFS/run/holdfast $ROOTFS/var/lib/holdfast

FROM ${ENVOY_IMAGE} AS with-envoy
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="holdfast with Envoy" \
      org.opencontainers.image.description="A sidecar-local xDS agent, and the Envoy that it runs" \
      org.opencontainers.image.source="https://github.com/holdfast-xds/holdfast" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/usr/local/bin/holdfast /usr/local/bin/holdfast
COPY --from=build /out/usr/share/doc/holdfast /usr/share/doc/holdfast
COPY --from=build --chown=65532:65532 /out/run/holdfast /run/holdfast
COPY --from=build --chown=65532:65532 /out/var/lib/holdfast /var/lib/holdfast
USER 65532:65532
EXPOSE 15020
ENTRYPOINT ["/usr/local/bin/holdfast"]
CMD ["help"]

FROM scratch AS mesh
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="holdfast-mesh" \
      org.opencontainers.image.description="A control plane with Istio's API that reads a directory of documents" \
      org.opencontainers.image.source="https://github.com/holdfast-xds/holdfast" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/etc /etc
COPY --from=build /out/usr/local/bin/holdfast-mesh /usr/local/bin/holdfast-mesh
COPY --from=build /out/usr/share/doc/holdfast /usr/share/doc/holdfast
USER 65532:65532
EXPOSE 15010 15012 15020
ENTRYPOINT ["/usr/local/bin/holdfast-mesh"]
CMD ["help"]

FROM scratch AS injector
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="holdfast-injector" \
      org.opencontainers.image.description="A mutating webhook that adds holdfast and Envoy to pods" \
      org.opencontainers.image.source="https://github.com/holdfast-xds/holdfast" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/etc /etc
COPY --from=build /out/usr/local/bin/holdfast-injector /usr/local/bin/holdfast-injector
COPY --from=build /out/usr/share/doc/holdfast /usr/share/doc/holdfast
USER 65532:65532
EXPOSE 15014 15017
ENTRYPOINT ["/usr/local/bin/holdfast-injector"]
CMD ["help"]

FROM scratch AS holdfast
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="A sidecar-local xDS agent that keeps an Envoy configured when its control plane does not answer" \
      org.opencontainers.image.source="https://github.com/holdfast-xds/holdfast" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/etc /etc
COPY --from=build /out/usr/local/bin/holdfast /usr/local/bin/holdfast
COPY --from=build /out/usr/share/doc/holdfast /usr/share/doc/holdfast
COPY --from=build --chown=65532:65532 /out/run/holdfast /run/holdfast
COPY --from=build --chown=65532:65532 /out/var/lib/holdfast /var/lib/holdfast
USER 65532:65532
EXPOSE 15020
ENTRYPOINT ["/usr/local/bin/holdfast"]
CMD ["help"]
