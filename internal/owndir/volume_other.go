//go:build !linux

package owndir

// isVolume is only supported on Linux.
func isVolume(string) bool { return false }
