package istio

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// request is a line of a case:
//
//	[N x|N &|until] METHOD URL [name=value]... -> STATUS [what else]...
//
// N x sends it N times one after the other, N & at once. until sends it until it is as wanted, for
// what Envoy does soon and not at once, such as the ejection of an endpoint. METHOD is one of HTTP, or TCP, which sends a
// line over a connection, or TLS, which does so over TLS. URL may be a path (to CASE.test at PORT_HTTP) or have scheme, host and port; the
// connection goes to loopback, or to the address of to=ADDRESS. name=value are headers; the names in lower
// case sni, cert and alpn are of the TLS connection, and from=NAME says which connection is captured.
type request struct {
	text     string
	times    int
	parallel bool
	until    bool
	method   string
	url      *url.URL
	path     string // as it is sent
	port     int
	headers  [][2]string
	sni      string
	cert     string // the name of the client certificate to present
	alpn     string // what to announce
	proto    string
	proxied  string // the source that a PROXY header before the request says
	tls12    bool   // no newer TLS than 1.2
	from, to string // whose connection it is, see captures, and the address
	claims   string // of the token, as JSON; "" for none
	want     want
}

// want is what must be the outcome, beside being the same with both control planes.
type want struct {
	statuses map[string]int // status to how many times
	// backends are the names that must have got the request, with the share in percent; nil for none
	// given.
	backends map[string]int
	any      bool // whichever backend, and it may differ
	same     bool // whichever backend, but the same
	mirrored []string
	attempts int      // 0: not said
	checks   []string // name=value
	// records are what an access log or a collector must have (~REGEX) or must not have (!REGEX).
	records []string
}

// parseRequest reads a line.
func parseRequest(text, name string, port int, issuer *issuer) (*request, error) {
	r := &request{text: text, times: 1, port: port}
	token := ""
	left, right, ok := strings.Cut(text, " -> ")
	if !ok {
		return nil, errors.New("it has no ->")
	}
	words, err := split(left)
	if err != nil {
		return nil, err
	}
	if n, err := strconv.Atoi(words[0]); err == nil && len(words) > 3 {
		r.times, r.parallel = n, words[1] == "&"
		words = words[2:]
	}
	if words[0] == "until" {
		r.until, words = true, words[1:]
	}
	if len(words) < 2 {
		return nil, errors.New("want METHOD URL")
	}
	r.method = words[0]
	if err := r.setURL(words[1], name); err != nil {
		return nil, err
	}
	for _, w := range words[2:] {
		key, value, ok := strings.Cut(w, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("%q is not name=value", w)
		case key == "sni":
			r.sni = value
		case key == "cert":
			r.cert = value
		case key == "as":
			r.cert, r.alpn, r.url.Scheme = value, "istio-http/1.1,istio", "https"
		case key == "token":
			if token, r.claims, err = issuer.token(value); err != nil {
				return nil, err
			}
		case key == "tls":
			r.tls12 = value == "1.2"
		case key == "proxied":
			r.proxied = value
		case key == "alpn":
			r.alpn = value
		case key == "from":
			r.from = value
		case key == "to":
			r.to = value
		case key == "proto":
			r.proto = value
		default:
			r.headers = append(r.headers, [2]string{key, value})
		}
	}
	r.setToken(token)
	r.want, err = parseWant(right, r.times)
	return r, err
}

// setToken puts a token in the place of TOKEN in the path and in headers, or into the header Authorization.
func (r *request) setToken(token string) {
	if token == "" {
		return
	}
	path := strings.ReplaceAll(r.path, "TOKEN", token)
	placed := path != r.path
	r.path = path
	for i, h := range r.headers {
		if value := strings.ReplaceAll(h[1], "TOKEN", token); value != h[1] {
			r.headers[i][1], placed = value, true
		}
	}
	if !placed {
		r.headers = append(r.headers, [2]string{"Authorization", "Bearer " + token})
	}
}

// toWorkload makes a request come from another machine to the workload of the Envoy, and to this port if it says none.
func (r *request) toWorkload(port int) {
	if r.from == "" {
		r.from, r.to = "peer", nodeAddress
	}
	if r.url.Port() == "" {
		r.port = port
	}
}

// setURL reads the target. The path stays as it is written.
func (r *request) setURL(target, name string) (err error) {
	if strings.HasPrefix(target, "/") {
		target = "http://" + name + ".test" + target
	}
	if strings.HasPrefix(target, ":") {
		target = "http://" + name + ".test" + target
	}
	scheme, rest, _ := strings.Cut(target, "://")
	host, path, _ := strings.Cut(rest, "/")
	r.path = "/" + path
	if r.url, err = url.Parse(scheme + "://" + host); err != nil {
		return err
	}
	if r.url.Port() != "" {
		r.port, err = strconv.Atoi(r.url.Port())
	}
	return err
}

func parseWant(text string, times int) (w want, err error) {
	words, err := split(text)
	if err != nil {
		return w, err
	}
	if len(words) == 0 {
		return w, errors.New("want a status")
	}
	w.statuses, w.backends = make(map[string]int), make(map[string]int)
	for i, word := range words {
		key, value, hasValue := strings.Cut(word, "=")
		status, count, counted := strings.Cut(word, ":")
		switch {
		case strings.HasPrefix(word, "log:") || strings.HasPrefix(word, "got:"):
			w.records = append(w.records, word)
		case i == 0 && !counted:
			w.statuses[word] = times
		case !hasValue && (status == "closed" || isNumber(status)) && counted:
			if w.statuses[status], err = strconv.Atoi(count); err != nil {
				return w, err
			}
		case word == "*":
			w.any = true
		case word == "=":
			w.same = true
		case strings.HasPrefix(word, "+"):
			w.mirrored = append(w.mirrored, word[1:])
		case key == "attempts" && hasValue:
			if w.attempts, err = strconv.Atoi(value); err != nil {
				return w, err
			}
		case hasValue:
			w.checks = append(w.checks, word)
		case counted && strings.HasSuffix(count, "%"):
			if w.backends[status], err = strconv.Atoi(strings.TrimSuffix(count, "%")); err != nil {
				return w, err
			}
		default:
			w.backends[word] = 100
		}
	}
	return w, nil
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// split splits a line at spaces that are not in double quotes.
func split(s string) (words []string, err error) {
	var b strings.Builder
	quoted, started := false, false
	for _, r := range s {
		switch {
		case r == '"':
			quoted, started = !quoted, true
		case r == ' ' && !quoted:
			if started {
				words = append(words, b.String())
			}
			b.Reset()
			started = false
		default:
			b.WriteRune(r)
			started = true
		}
	}
	if quoted {
		return nil, errors.New("a quotation mark is not closed")
	}
	if started {
		words = append(words, b.String())
	}
	return words, nil
}
