package probe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// forms lists what Parse reads, for errors.
const forms = "http://HOST:PORT/PATH, https://HOST:PORT/PATH, tcp://HOST:PORT, grpc://HOST:PORT[/SERVICE] or exec:COMMAND"

// Parse reads what to probe: http or https with a URL, tcp://HOST:PORT, grpc://HOST:PORT[/SERVICE] or exec:COMMAND. The command
// is not run by a shell: spaces separate its arguments, except in 'single' or "double" quotes.
func Parse(text string) (Check, error) {
	if line, ok := strings.CutPrefix(text, "exec:"); ok {
		command, err := split(line)
		if err != nil {
			return Check{}, err
		}
		if len(command) == 0 {
			return Check{}, errors.New("exec: the command is missing")
		}
		return Exec(command), nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return Check{}, fmt.Errorf("%q: want %s", redact.MaskURL(text), forms)
	}
	dial := DialFrom(netip.Addr{})
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" {
			return Check{}, fmt.Errorf("%q: the host is missing", redact.MaskURL(text))
		}
		if port := u.Port(); port != "" && !validPort(port) {
			return Check{}, fmt.Errorf("%q: the port is %s: want a number from 1 to 65535", redact.MaskURL(text), port)
		}
		u.Fragment = ""
		return HTTP(dial, u, nil), nil
	case "tcp", "grpc":
	default:
		return Check{}, fmt.Errorf("%q: want %s", redact.MaskURL(text), forms)
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" || !validPort(port) {
		return Check{}, fmt.Errorf("%q: want %s://HOST:PORT", redact.MaskURL(text), u.Scheme)
	}
	if u.RawQuery != "" || u.User != nil || u.Scheme == "tcp" && u.Path != "" && u.Path != "/" {
		return Check{}, fmt.Errorf("%q: want %s", redact.MaskURL(text), forms)
	}
	if u.Scheme == "tcp" {
		return TCP(dial, u.Host), nil
	}
	return GRPC(dial, u.Host, strings.TrimPrefix(u.Path, "/")), nil
}

// validPort reports whether a text is the number of a port.
func validPort(text string) bool {
	number, err := strconv.ParseUint(text, 10, 16)
	return err == nil && number > 0
}

// split splits a command line at spaces outside of quotes.
func split(line string) (words []string, err error) {
	var word strings.Builder
	quote, inWord := rune(0), false
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, inWord = c, true
		case unicode.IsSpace(c):
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("exec: the quote %c is not closed", quote)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
