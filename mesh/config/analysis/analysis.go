// Package analysis finds what is wrong in documents beside each other: references to what does not exist, what two of them ask for, and
// what the Gateway API's conversion leaves out (config.References, config.Contests, gatewayapi.Convert). The command line and a server say
// the same, because both ask here.
//
// It promises that each problem is a warning, since each document by itself is valid and used, and names its document with the place where
// that was written. It changes nothing, and may be called concurrently.
package analysis

import (
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/gatewayapi"
)

// Result is what is wrong in documents.
type Result struct {
	// Problems are warnings, with those that are suppressed. Their File and Line are those of the document.
	Problems []config.Problem
	// Contests are what two documents ask for; Problems has them, too.
	Contests []config.Contest
}

// Of looks at the documents of a reader. domain is the DNS domain of Kubernetes Services.
func Of(r config.Reader, domain string) (found Result) {
	found.Problems, found.Contests = config.References(r, domain)
	found.Problems = append(found.Problems, gatewayapi.Convert(r, domain).Problems...)
	for i := range found.Problems {
		p := &found.Problems[i]
		if doc := r.Get(p.Key); doc != nil {
			p.File, p.Line = place(doc.Origin)
		}
	}
	config.MarkSuppressed(found.Problems, r.Get)
	return found
}

// place returns the file and the line of an Origin; 0 for an Origin without a line.
func place(origin string) (file string, line int) {
	if at := strings.LastIndexByte(origin, ':'); at >= 0 {
		if line, err := strconv.Atoi(origin[at+1:]); err == nil {
			return origin[:at], line
		}
	}
	return origin, 0
}
