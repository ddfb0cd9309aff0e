package envoy

import "syscall"

// attributes makes a child that has a group of its own, so that what a terminal sends
// to this process's is not meant for it, and that ends with the thread that starts it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
