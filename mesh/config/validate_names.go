package config

import (
	"fmt"
	"net/netip"
	pathpkg "path"
	"regexp"
	"strconv"
	"strings"
)

var (
	dnsLabel      = regexp.MustCompile(`^[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?$`)
	lowerDNSName  = regexp.MustCompile(`^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*$`)
	wildcardLabel = regexp.MustCompile(`^(?:\*|(?:\*|[a-zA-Z0-9])(?:[-a-zA-Z0-9]*[a-zA-Z0-9])?)$`)
	qualifiedName = regexp.MustCompile(`^(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
	headerName    = regexp.MustCompile("^[-!#$%&'*+.^_`|~A-Za-z0-9]+$")
)

const (
	maxLabel = 63
	maxName  = 253
	maxHost  = 255
	// unixPrefix begins the address of a Unix socket.
	unixPrefix = "unix://"
)

// isDNSLabel reports whether a text is a label of a DNS name (RFC 1123).
func isDNSLabel(text string) bool { return len(text) <= maxLabel && dnsLabel.MatchString(text) }

// isDNSName reports whether a text is a name of a Kubernetes object.
func isDNSName(text string) bool { return len(text) <= maxName && lowerDNSName.MatchString(text) }

func isLabelKey(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return isLabelValue(key) && key != ""
	}
	return isDNSName(strings.ToLower(prefix)) && isLabelValue(name) && name != ""
}

func isLabelValue(value string) bool {
	return value == "" || len(value) <= maxLabel && qualifiedName.MatchString(value)
}

// isIP reports whether a text is an IP address. One with a zone means something else on each machine, and Envoy takes none.
func isIP(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Zone() == ""
}

// hostProblem returns why a text is no DNS name, "" if it is one. A trailing dot is accepted.
func hostProblem(host string) string {
	switch {
	case host == "":
		return "is no host: it must not be empty"
	case len(host) > maxHost:
		return "is no host: it is longer than 255"
	}
	labels := strings.Split(host, ".")
	last := labels[len(labels)-1]
	if last == "" && len(labels) > 1 {
		labels = labels[:len(labels)-1]
	} else if _, err := strconv.Atoi(last); err == nil {
		return "is no host: its last label must not be a number"
	}
	for _, label := range labels {
		if !isDNSLabel(label) {
			return "is no host: use labels of letters, digits and '-', at most 63 each, with dots between them"
		}
	}
	return ""
}

// wildcardHostProblem is hostProblem for names whose first label may be "*" or begin with it.
func wildcardHostProblem(host string) string {
	first, rest, more := strings.Cut(host, ".")
	switch {
	case len(host) > maxHost:
		return hostProblem(host)
	case len(first) > maxLabel || !wildcardLabel.MatchString(first):
		if host == "" {
			return hostProblem(host)
		}
		return "is no host: its first label must have letters, digits and '-', and may be or begin with '*'"
	case more:
		return hostProblem(rest)
	}
	return ""
}

// partialWildcardProblem returns why "*" in a host is wrong where it must be a whole label.
func partialWildcardProblem(host string) string {
	if strings.Contains(host, "*") && host != "*" && !strings.HasPrefix(host, "*.") {
		return `has a "*" that is only a part of a label: such a host is not matched`
	}
	return ""
}

// prefixProblem returns why a text is neither an IP address nor a prefix.
func prefixProblem(text string) string {
	if strings.Contains(text, "/") {
		if _, err := netip.ParsePrefix(text); err != nil {
			return "is no IP prefix as in 10.0.0.0/8"
		}
		return ""
	}
	return ipProblem(text)
}

// ipProblem returns why a text is no IP address.
func ipProblem(text string) string {
	if !isIP(text) {
		return "is no IP address"
	}
	return ""
}

// bindProblem returns why nobody can listen at a text.
func bindProblem(text string) string {
	if a, err := netip.ParseAddr(text); err == nil && a.Is4In6() {
		return "is an address of IPv4 in the form of IPv6, at which Envoy cannot listen: write " + a.Unmap().String()
	}
	return ipProblem(text)
}

// maxUnixPath is the length of the longest path of a socket that Linux and Envoy take, in bytes.
const maxUnixPath = 107

// unixProblem returns why the text after "unix://" is no path of a socket. One that begins with "@" is
// in Linux's abstract namespace.
func unixProblem(text string) string {
	if len(text) > maxUnixPath {
		return fmt.Sprintf("is longer than %d bytes", maxUnixPath)
	}
	if strings.HasPrefix(text, "@") {
		return ""
	}
	if !pathpkg.IsAbs(text) || strings.HasSuffix(text, "/") {
		return "is no absolute path of a socket"
	}
	return ""
}

// headerNameProblem returns why a text is no name of an HTTP header.
func headerNameProblem(name string) string {
	if !headerName.MatchString(name) {
		return "is no name of a header"
	}
	return ""
}

// headerValueProblem returns why a text is no value for Envoy: it has control characters, or is no format.
func headerValueProblem(value string) string {
	if problem := controlProblem(value); problem != "" {
		return problem
	}
	return formatProblem(value)
}

// controlProblem returns why a text cannot be a value in HTTP.
func controlProblem(value string) string {
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return "has a control character"
		}
	}
	return ""
}
