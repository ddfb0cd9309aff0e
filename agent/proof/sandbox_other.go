//go:build !linux

package proof

import (
	"errors"
	"syscall"
)

var errLinux = errors.New("a proof needs Linux, for a network of its own")

func possible() error                  { return errLinux }
func namespaces() *syscall.SysProcAttr { return nil }

func (in *job) run() outcome { return outcome{Failure: errLinux.Error()} }
