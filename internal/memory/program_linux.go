package memory

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// giveBackProgram releases the pages of the program file, most of which are not needed again: a start
// uses 15 MB, mainly the tables of protobuf messages. Pages that are needed are mapped again from the
// file.
func giveBackProgram(log *slog.Logger) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		log.Debug("pages of the program are not given back", "err", err)
		return
	}
	defer func() { _ = maps.Close() }()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		// 00400000-01a4f000 r-xp 00000000 fd:01 131 /usr/bin/holdfast
		fields := strings.Fields(lines.Text())
		if len(fields) != 6 || fields[5] != program || strings.Contains(fields[1], "w") {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			continue
		}
		// These are read-only pages of a file, so no data is lost.
		pages := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&from))), to-from)
		if err := unix.Madvise(pages, unix.MADV_DONTNEED); err != nil {
			log.Debug("pages of the program are not given back", "err", err)
		}
	}
}
