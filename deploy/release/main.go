package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if err := start(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "release:", err)
		}
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	version, repository, dist, fetched string
	key, builder, snapshots            string
	platforms                          []platform
	withoutEnvoy, dirty, newerDebian   bool
	epoch                              string // SOURCE_DATE_EPOCH
}

func start(args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.version, "version", "", "`VERSION` of the release, such as v0.1.0 or v0.1.0-rc.1")
	flags.StringVar(&o.repository, "repository", ".", "`DIR` of the git repository")
	flags.StringVar(&o.dist, "dist", "dist", "`DIR` for the release; one that this program made is emptied first")
	flags.StringVar(&o.fetched, "fetched", "", "`DIR` in which downloads are kept (default .peers/release in the repository)")
	flags.StringVar(&o.key, "signing-key", "", "PEM `FILE` of the private key to sign with, Ed25519 or ECDSA P-256; empty: no signatures")
	flags.StringVar(&o.builder, "builder", "https://"+repository+"/deploy/release", "`URI` of who runs this, for the provenance")
	platforms := flags.String("platforms", "", "`LIST` of platforms, such as linux/amd64,linux/arm64 (default all)")
	flags.BoolVar(&o.withoutEnvoy, "without-envoy", false, "do not make the image with Envoy")
	flags.BoolVar(&o.newerDebian, "newer-debian", false, "if a package of Debian in the image with Envoy can be had neither from Debian's archive nor from its snapshots as it is pinned, take the one that the archive has now: for trials, and where no snapshots can be reached")
	flags.StringVar(&o.snapshots, "snapshots", "https://snapshot.debian.org", "`URL` of Debian's snapshots")
	pinDebian := flags.Bool("pin-debian", false, "make no release, but pin the packages that Debian's archive has now in deploy/release/debian.txt")
	flags.BoolVar(&o.dirty, "dirty", false, "take the working tree with its changes instead of the commit: for trials")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q: want flags only", flags.Args())
	}
	var err error
	if o.platforms, err = parsePlatforms(*platforms); err != nil {
		return err
	}
	if o.repository, err = filepath.Abs(o.repository); err != nil {
		return err
	}
	if *pinDebian {
		return pinAgain(filepath.Join(o.repository, "deploy", "release", "debian.txt"), stdout)
	}
	if err := checkVersion(o.version); err != nil {
		return err
	}
	if o.fetched == "" {
		o.fetched = filepath.Join(o.repository, ".peers", "release")
	}
	if o.fetched, err = filepath.Abs(o.fetched); err != nil {
		return err
	}
	o.epoch = os.Getenv("SOURCE_DATE_EPOCH")
	return release(o, stdout)
}
