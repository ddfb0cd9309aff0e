package fieldrules

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/envoyproxy/protoc-gen-validate/validate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The patterns of well_known_regex; headerString is that of headers that are not strict.
const (
	headerName   = "^:?[0-9a-zA-Z!#$%&'*+-.^_|~`]+$"
	headerValue  = "^[^\u0000-\u0008\u000A-\u001F\u007F]*$"
	headerString = "^[^\u0000\u000A\u000D]*$"
)

// patternOf returns the regular expression of a string, "" for none.
func patternOf(r *validate.StringRules) string {
	known := r.GetWellKnownRegex()
	switch {
	case known == validate.KnownRegex_UNKNOWN:
		return r.GetPattern()
	case !r.GetStrict(): // true by default
		return headerString
	case known == validate.KnownRegex_HTTP_HEADER_NAME:
		return headerName
	}
	return headerValue
}

// compiled has the regular expressions of rules.
var compiled sync.Map

func matches(pattern, text string) bool {
	re, ok := compiled.Load(pattern)
	if !ok {
		re, _ = compiled.LoadOrStore(pattern, regexp.MustCompile(pattern)) // protoc-gen-validate has compiled it
	}
	return re.(*regexp.Regexp).MatchString(text)
}

func (c *checker) text(r *validate.StringRules, s, path string) {
	if r.GetIgnoreEmpty() && s == "" {
		return
	}
	fail := func(reason ...any) { c.report(path, fmt.Sprint(reason...)) }
	if r.Const != nil && s != r.GetConst() {
		fail("value must equal ", r.GetConst())
	}
	if len(r.GetIn()) > 0 {
		if !slices.Contains(r.GetIn(), s) {
			fail("value must be in list ", r.GetIn())
		}
	} else if slices.Contains(r.GetNotIn(), s) {
		fail("value must not be in list ", r.GetNotIn())
	}
	c.length(r.Len, r.MinLen, r.MaxLen, utf8.RuneCountInString(s), "runes", path)
	c.length(r.LenBytes, r.MinBytes, r.MaxBytes, len(s), "bytes", path)
	if r.Prefix != nil && !strings.HasPrefix(s, r.GetPrefix()) {
		fail(fmt.Sprintf("value does not have prefix %q", r.GetPrefix()))
	}
	if r.Suffix != nil && !strings.HasSuffix(s, r.GetSuffix()) {
		fail(fmt.Sprintf("value does not have suffix %q", r.GetSuffix()))
	}
	if r.Contains != nil && !strings.Contains(s, r.GetContains()) {
		fail(fmt.Sprintf("value does not contain substring %q", r.GetContains()))
	}
	if r.NotContains != nil && strings.Contains(s, r.GetNotContains()) {
		fail(fmt.Sprintf("value contains substring %q", r.GetNotContains()))
	}
	if reason := wellKnown(r, s); reason != "" {
		fail(reason)
	}
	if p := patternOf(r); p != "" && !matches(p, s) {
		fail(fmt.Sprintf("value does not match regex pattern %q", p))
	}
}

// wellKnown returns why a text is not what it should be, such as an address.
func wellKnown(r *validate.StringRules, s string) string {
	ip := net.ParseIP(s)
	switch {
	case r.GetIp() && ip == nil:
		return "value must be a valid IP address"
	case r.GetIpv4() && ip.To4() == nil:
		return "value must be a valid IPv4 address"
	case r.GetIpv6() && (ip == nil || ip.To4() != nil):
		return "value must be a valid IPv6 address"
	case r.GetHostname() && validHostname(s) != nil:
		return "value must be a valid hostname"
	case r.GetAddress() && ip == nil && validHostname(s) != nil:
		return "value must be a valid hostname, or ip address"
	case r.GetUri(), r.GetUriRef():
		parsed, err := url.Parse(s)
		switch {
		case err != nil:
			return "value must be a valid URI"
		case r.GetUri() && !parsed.IsAbs():
			return "value must be absolute"
		}
	}
	return ""
}

func validHostname(host string) error {
	if len(host) > 253 {
		return errors.New("a hostname has at most 253 characters")
	}
	for _, part := range strings.Split(strings.ToLower(strings.TrimSuffix(host, ".")), ".") {
		other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
		if len(part) == 0 || len(part) > 63 || part[0] == '-' || part[len(part)-1] == '-' || strings.ContainsFunc(part, other) {
			return fmt.Errorf("%q is no part of a hostname", part)
		}
	}
	return nil
}

func (c *checker) bytes(r *validate.BytesRules, b []byte, path string) {
	if r.GetIgnoreEmpty() && len(b) == 0 {
		return
	}
	fail := func(reason ...any) { c.report(path, fmt.Sprint(reason...)) }
	c.length(r.Len, r.MinLen, r.MaxLen, len(b), "bytes", path)
	if r.Prefix != nil && !bytes.HasPrefix(b, r.GetPrefix()) {
		fail("value does not have prefix ", r.GetPrefix())
	}
	if r.Suffix != nil && !bytes.HasSuffix(b, r.GetSuffix()) {
		fail("value does not have suffix ", r.GetSuffix())
	}
	if r.Const != nil && !bytes.Equal(b, r.GetConst()) {
		fail("value must equal ", r.GetConst())
	}
	if p := r.GetPattern(); p != "" && !matches(p, string(b)) {
		fail(fmt.Sprintf("value does not match regex pattern %q", p))
	}
}

// length checks a length. Exactly and the two bounds together are different rules of the same meaning.
func (c *checker) length(exactly, atLeast, atMost *uint64, n int, unit, path string) {
	if exactly == nil && atLeast != nil && atMost != nil && *atLeast == *atMost {
		exactly = atLeast
	}
	switch length := uint64(n); {
	case exactly != nil:
		if length != *exactly {
			c.report(path, fmt.Sprintf("value length must be %d %s", *exactly, unit))
		}
	case atLeast != nil && atMost != nil:
		if length < *atLeast || length > *atMost {
			c.report(path, fmt.Sprintf("value length must be between %d and %d %s, inclusive", *atLeast, *atMost, unit))
		}
	case atLeast != nil:
		if length < *atLeast {
			c.report(path, fmt.Sprintf("value length must be at least %d %s", *atLeast, unit))
		}
	case atMost != nil:
		if length > *atMost {
			c.report(path, fmt.Sprintf("value length must be at most %d %s", *atMost, unit))
		}
	}
}

// durationOf returns a google.protobuf.Duration, generated or not; not ok if it is out of its range.
func durationOf(m protoreflect.Message) (_ time.Duration, ok bool) {
	d, is := m.Interface().(*durationpb.Duration)
	if !is {
		fields := m.Descriptor().Fields()
		d = &durationpb.Duration{Seconds: m.Get(fields.ByName("seconds")).Int(), Nanos: int32(m.Get(fields.ByName("nanos")).Int())}
	}
	return d.AsDuration(), d.CheckValid() == nil
}
