// Package page tests the page of the admin interface (agent/admin/page) in a real Chromium, with a real agent and a real
// Envoy. `make browser` fetches Chromium and axe-core.
package page
