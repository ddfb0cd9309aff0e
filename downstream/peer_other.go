//go:build !linux

package downstream

import (
	"errors"
	"net"
)

const peersAreKnown = false

func startOf(int32) (uint64, error) { return 0, errors.ErrUnsupported }

func credentialsOf(*net.UnixConn) (credentials, error) {
	return credentials{}, errors.ErrUnsupported
}
