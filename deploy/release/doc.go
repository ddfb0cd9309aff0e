// Command release makes what a release page of holdfast holds, out of one commit: binaries and archives, packages for Debian
// and RPM, images, the chart, lists of parts (SBOM), checksums, a signature and the provenance. docs/releasing.md explains how
// to make, verify and reproduce a release.
//
// It promises that two runs for the same commit, version and platforms write the same bytes, wherever and whenever they run:
// the source is exported from git, the Go toolchain and everything that is fetched are pinned, and times, owners and the order
// of files are fixed. Signatures by Ed25519 and by ECDSA are the same each time, too. It promises nothing for versions of Go
// other than the pinned one, which it does not run with. It is a program that does one thing after the other: nothing in this
// package may be called concurrently.
package main
