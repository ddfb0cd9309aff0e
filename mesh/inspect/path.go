package inspect

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// pathOf returns the path of a request as an HTTP connection manager hands it on. answer is what it answers itself
// because of the path; "" if it does not.
func pathOf(m *managerv3.HttpConnectionManager, whole string) (path, answer string) {
	path, query, hasQuery := strings.Cut(whole, "?")
	if strings.Contains(whole, "#") {
		return whole, badPath(whole, "it has a fragment")
	}
	decoded := decodedSlashes.Replace(path)
	redirects := false
	if decoded != path {
		switch m.GetPathWithEscapedSlashesAction() {
		case managerv3.HttpConnectionManager_REJECT_REQUEST:
			return whole, badPath(whole, "it has an encoded slash")
		case managerv3.HttpConnectionManager_UNESCAPE_AND_REDIRECT:
			path, redirects = decoded, true
		case managerv3.HttpConnectionManager_UNESCAPE_AND_FORWARD:
			path = decoded
		}
	}
	if m.GetNormalizePath().GetValue() {
		var ok bool
		if path, ok = normalized(path); !ok {
			return whole, badPath(whole, "it has %00")
		}
	}
	if m.GetMergeSlashes() {
		path = mergedSlashes(path)
	}
	if hasQuery {
		path += "?" + query
	}
	if redirects {
		return path, fmt.Sprintf("%d: redirected to the path %s, without encoded slashes", http.StatusTemporaryRedirect, path)
	}
	return path, ""
}

func badPath(path, why string) string {
	return fmt.Sprintf("%d: the path %s is not accepted: %s", http.StatusBadRequest, path, why)
}

var decodedSlashes = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", `\`, "%5C", `\`)

func mergedSlashes(path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	out := strings.Join(strings.FieldsFunc(path, func(c rune) bool { return c == '/' }), "/")
	if strings.HasPrefix(path, "/") {
		out = "/" + out
	}
	if strings.HasSuffix(path, "/") {
		out += "/"
	}
	return out
}

// normalized returns a path without its query as Envoy normalizes it: without "." and "..", with / for \, with unreserved
// characters decoded and others encoded. ok is false if Envoy does not accept it.
func normalized(path string) (out string, ok bool) {
	n := &normalizer{in: withoutDotParameters(path), percent: -3, ok: true}
	if n.in == "" || !isSlash(n.in[0]) {
		n.out = append(n.out, '/')
	}
	for n.at < len(n.in) {
		n.next()
	}
	return string(n.out), n.ok
}

// withoutDotParameters removes the parameters of the segments "." and "..": of "..;a" as of "..".
func withoutDotParameters(path string) string {
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if name, _, has := strings.Cut(segment, ";"); has && (name == "." || name == "..") {
			segments[i] = name
		}
	}
	return strings.Join(segments, "/")
}

type normalizer struct {
	in  string
	at  int
	out []byte
	// percent is where out has the last % that begins no code; -3 for none.
	percent int
	ok      bool
}

// next takes the next character, code or segment of dots.
func (n *normalizer) next() {
	rest := n.in[n.at:]
	c := rest[0]
	code, isCode := codeAt(rest)
	switch dot := dotAt(rest); {
	case dot > 0 && len(n.out) > 0 && n.out[len(n.out)-1] == '/':
		n.dots(rest, dot)
	case dot > 0:
		n.put(dot, ".")
	case c == '\\':
		n.put(1, "/")
	case isCode && isUnreserved(code):
		n.put(3, string([]byte{code}))
		n.encodeNested()
	case isCode:
		n.ok = n.ok && code != 0
		n.put(3, rest[:3])
	case c == '%':
		n.percent = len(n.out)
		n.put(1, rest[:1])
	case c <= ' ' || c >= 0x7f || strings.IndexByte("\"#<>?^`{|}", c) >= 0:
		n.put(1, fmt.Sprintf("%%%02X", c))
	default:
		n.put(1, rest[:1])
	}
}

func (n *normalizer) put(taken int, out string) {
	n.at += taken
	n.out = append(n.out, out...)
}

// dots takes a dot after a slash.
func (n *normalizer) dots(rest string, first int) {
	second := dotAt(rest[first:])
	end := func(i int) (length int, is bool) {
		if i == len(rest) {
			return i, true
		}
		return i + 1, isSlash(rest[i])
	}
	if length, is := end(first); is {
		n.at += length
	} else if length, is := end(first + second); is && second > 0 {
		n.at += length
		if len(n.out) > 1 {
			n.out = n.out[:strings.LastIndexByte(string(n.out[:len(n.out)-1]), '/')+1]
		}
	} else {
		n.put(first, ".")
	}
}

// encodeNested encodes a % that would begin a code because of the character that was decoded last.
func (n *normalizer) encodeNested() {
	if n.percent < len(n.out)-3 {
		return
	}
	text := string(n.out[n.percent:])
	if len(text) == 2 && n.at < len(n.in) {
		text += n.in[n.at : n.at+1]
	}
	if _, is := codeAt(text); is {
		n.out = append(n.out[:n.percent:n.percent], "%25"+string(n.out[n.percent+1:])...)
	}
}

func isSlash(c byte) bool { return c == '/' || c == '\\' }

// dotAt returns the length of a dot at the beginning of a text; 0 if there is none.
func dotAt(text string) int {
	if strings.HasPrefix(text, ".") {
		return 1
	}
	if code, is := codeAt(text); is && code == '.' {
		return 3
	}
	return 0
}

// codeAt returns the character of a code such as %41 at the beginning of a text.
func codeAt(text string) (code byte, is bool) {
	if len(text) < 3 || text[0] != '%' {
		return 0, false
	}
	value, err := strconv.ParseUint(text[1:3], 16, 8)
	return byte(value), err == nil
}

func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}
