// Package page is the page that an agent shows to a browser: one HTML document, which asks the admin interface for
// what it shows.
//
// It promises that the document asks no other origin for anything and runs no script but its own (its
// Content-Security-Policy says so), that it changes nothing, and that it is at most MaxSize bytes.
package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// MaxSize is the largest size of the document, in bytes.
const MaxSize = 100_000

//go:embed page.html
var html string

//go:embed page.css
var style string

//go:embed page.js
var script string

// document is the page with its style and script in it.
var document = strings.NewReplacer("{{style}}", style, "{{script}}", script).Replace(html)

// policy admits the style and the script by their hashes (Content Security Policy Level 3, section 2.3.1), and
// requests to the page's own origin.
var policy = strings.Join([]string{
	"default-src 'none'", "script-src 'sha256-" + hash(script) + "'", "style-src 'sha256-" + hash(style) + "'",
	"connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
}, "; ")

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP answers with the page.
func ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store") // the next version of the agent has another one
	_, _ = w.Write([]byte(document))   // whoever asked may have gone
}
