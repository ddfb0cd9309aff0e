//go:build !linux

package reaper

import "context"

// Run does nothing: it is for containers.
func (r *Reaper) Run(context.Context) {}
