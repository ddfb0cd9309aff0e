//go:build !linux

package reaper

import "context"

// Run is only supported on Linux, for containers.
func (r *Reaper) Run(context.Context) {}
