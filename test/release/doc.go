// Package release tests what `make release` makes: it makes releases, and installs and runs what is in them, with dpkg, rpm,
// systemd, shells, openssl and qemu. It needs root. With -short only one architecture is compared byte for byte, and less of
// arm64 is emulated. It has no code outside of its tests.
package release
