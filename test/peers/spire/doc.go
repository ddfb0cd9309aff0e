// Package spire plays `holdfast run --ca spire:` with a real SPIRE server and a real SPIRE agent, which `make spire` builds
// from SPIRE's own module, and with Envoys that show one another the SVIDs.
package spire
