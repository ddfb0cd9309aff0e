package listener

import (
	"math"
	"syscall"
)

// What is left for files, control planes and the process itself of the descriptors that it may open: an eighth, but at least what
// an agent has open, twice, and not more than the files of any of ours.
const (
	minReserve = 40
	maxReserve = 1024
)

// Room returns how many connections the listener of clients may have open, and each of the others, such as that of health, which
// are in the reserve. The limit of the process on open files (RLIMIT_NOFILE) decides; Go raises it to the hard one at the start.
func Room() (clients, others int) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt, math.MaxInt
	}
	return room(uint64(limit.Cur))
}

func room(limit uint64) (clients, others int) {
	files := int(min(limit, 1<<30)) // it may be infinite
	reserve := max(minReserve, min(files/8, maxReserve))
	return max(files-reserve, files/4), reserve / 8
}
