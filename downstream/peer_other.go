//go:build !linux

package downstream

import (
	"errors"
	"net"
)

const peersAreKnown = false

func credentialsOf(*net.UnixConn) (credentials, error) {
	return credentials{}, errors.ErrUnsupported
}
