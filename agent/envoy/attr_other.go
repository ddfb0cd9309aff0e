//go:build !linux

package envoy

import "syscall"

// attributes makes a child that has a group of its own. Elsewhere than on Linux it may
// outlive an agent that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
