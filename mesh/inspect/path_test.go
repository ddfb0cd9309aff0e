package inspect

import (
	"cmp"
	"strings"
	"testing"

	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// These are the answers of Envoy 1.40 with each pathNormalization, and what it refuses.
func TestPathsAreNormalizedAsEnvoyDoes(t *testing.T) {
	base := &managerv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true)}
	merge := &managerv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true), MergeSlashes: true}
	decode := &managerv3.HttpConnectionManager{
		NormalizePath: wrapperspb.Bool(true), MergeSlashes: true, PathWithEscapedSlashesAction: managerv3.HttpConnectionManager_UNESCAPE_AND_FORWARD,
	}
	for _, tc := range [][4]string{
		{`/x/../admin`, `/admin`, `/admin`, `/admin`},
		{`/x\..\admin`, `/admin`, `/admin`, `/admin`},
		{`/x\y`, `/x/y`, `/x/y`, `/x/y`},
		{`/x/..;/admin`, `/admin`, `/admin`, `/admin`},
		{`/x/..;a=b/admin`, `/admin`, `/admin`, `/admin`},
		{`/..;/admin`, `/admin`, `/admin`, `/admin`},
		{`/x/.;/admin`, `/x/admin`, `/x/admin`, `/x/admin`},
		{`/a;b/c`, `/a;b/c`, `/a;b/c`, `/a;b/c`},
		{`/a/b;`, `/a/b;`, `/a/b;`, `/a/b;`},
		{`/a/..;`, `/`, `/`, `/`},
		{`/admin%00`, `400`, `400`, `400`},
		{`/admin%2500`, `/admin%2500`, `/admin%2500`, `/admin%2500`},
		{`/admin%0`, `/admin%0`, `/admin%0`, `/admin%0`},
		{`/admin%`, `/admin%`, `/admin%`, `/admin%`},
		{`/admin%zz`, `/admin%zz`, `/admin%zz`, `/admin%zz`},
		{`/%2e%2e/admin`, `/admin`, `/admin`, `/admin`},
		{`/x/%2e%2e/admin`, `/admin`, `/admin`, `/admin`},
		{`/x/%2E%2E;/admin`, `/x/..;/admin`, `/x/..;/admin`, `/x/..;/admin`},
		{`/x/.%2e/admin`, `/admin`, `/admin`, `/admin`},
		{`/a%2fb`, `/a%2fb`, `/a%2fb`, `/a/b`},
		{`/a%2Fb`, `/a%2Fb`, `/a%2Fb`, `/a/b`},
		{`/a%5cb`, `/a%5cb`, `/a%5cb`, `/a/b`},
		{`/a%5Cb`, `/a%5Cb`, `/a%5Cb`, `/a/b`},
		{`/a%5c..%5cadmin`, `/a%5c..%5cadmin`, `/a%5c..%5cadmin`, `/admin`},
		{`/x%2f..%2fadmin`, `/x%2f..%2fadmin`, `/x%2f..%2fadmin`, `/admin`},
		{`/%61dmin`, `/admin`, `/admin`, `/admin`},
		{`/%41`, `/A`, `/A`, `/A`},
		{`/a%7eb`, `/a~b`, `/a~b`, `/a~b`},
		{`/a%5fb`, `/a_b`, `/a_b`, `/a_b`},
		{`/a%2db`, `/a-b`, `/a-b`, `/a-b`},
		{`/a%2eb`, `/a.b`, `/a.b`, `/a.b`},
		{`/a%20b`, `/a%20b`, `/a%20b`, `/a%20b`},
		{`/a%3bb`, `/a%3bb`, `/a%3bb`, `/a%3bb`},
		{`/a%25b`, `/a%25b`, `/a%25b`, `/a%25b`},
		{`/a%c3%a9`, `/a%c3%a9`, `/a%c3%a9`, `/a%c3%a9`},
		{`/a"b`, `/a%22b`, `/a%22b`, `/a%22b`},
		{`/a<b>`, `/a%3Cb%3E`, `/a%3Cb%3E`, `/a%3Cb%3E`},
		{`/a^b`, `/a%5Eb`, `/a%5Eb`, `/a%5Eb`},
		{`/a{b}`, `/a%7Bb%7D`, `/a%7Bb%7D`, `/a%7Bb%7D`},
		{`/a|b`, `/a%7Cb`, `/a%7Cb`, `/a%7Cb`},
		{`/a[b]`, `/a[b]`, `/a[b]`, `/a[b]`},
		{`/a'b`, `/a'b`, `/a'b`, `/a'b`},
		{`/a%%300`, `/a%2500`, `/a%2500`, `/a%2500`},
		{`/a%%3030`, `/a%25030`, `/a%25030`, `/a%25030`},
		{`/a%1`, `/a%1`, `/a%1`, `/a%1`},
		{`/a?x=/../y%61`, `/a?x=/../y%61`, `/a?x=/../y%61`, `/a?x=/../y%61`},
		{`/a#b`, `400`, `400`, `400`},
		{`/a//b`, `/a//b`, `/a/b`, `/a/b`},
		{`//a///b/`, `//a///b/`, `/a/b/`, `/a/b/`},
		{`/a//../b`, `/a/b`, `/a/b`, `/a/b`},
		{`/a/./b/.`, `/a/b/`, `/a/b/`, `/a/b/`},
		{`/a/..`, `/`, `/`, `/`},
		{`/a/b/..`, `/a/`, `/a/`, `/a/`},
		{`/../../a`, `/a`, `/a`, `/a`},
		{`/.`, `/`, `/`, `/`},
		{`/..`, `/`, `/`, `/`},
		{`/...`, `/...`, `/...`, `/...`},
		{`/.a`, `/.a`, `/.a`, `/.a`},
		{`/a.`, `/a.`, `/a.`, `/a.`},
		{`/a./b`, `/a./b`, `/a./b`, `/a./b`},
		{`/a../b`, `/a../b`, `/a../b`, `/a../b`},
		{`/a%01`, `/a%01`, `/a%01`, `/a%01`},
		{`/a%7f`, `/a%7f`, `/a%7f`, `/a%7f`},
		{`/a%80`, `/a%80`, `/a%80`, `/a%80`},
		{`/*`, `/*`, `/*`, `/*`},
		{`/;`, `/;`, `/;`, `/;`},
		{`/;/a`, `/;/a`, `/;/a`, `/;/a`},
		{`/x/;/../a`, `/x/a`, `/x/a`, `/x/a`},
		{`/a/%2e`, `/a/`, `/a/`, `/a/`},
		{`/a/%2e%2e`, `/`, `/`, `/`},
		{`/a%2f%2fb`, `/a%2f%2fb`, `/a%2f%2fb`, `/a/b`},
		{`/a%2f..%5cb/`, `/a%2f..%5cb/`, `/a%2f..%5cb/`, `/b/`},
		{`/x/..%2fadmin`, `/x/..%2fadmin`, `/x/..%2fadmin`, `/admin`},
		{`/x/..%3b/admin`, `/x/..%3b/admin`, `/x/..%3b/admin`, `/x/..%3b/admin`},
		{`/x/..%3B/admin`, `/x/..%3B/admin`, `/x/..%3B/admin`, `/x/..%3B/admin`},
		{`/x/.%2e;/admin`, `/x/..;/admin`, `/x/..;/admin`, `/x/..;/admin`},
		{`/x/%2e.;/admin`, `/x/..;/admin`, `/x/..;/admin`, `/x/..;/admin`},
		{`/x/%2e;/admin`, `/x/.;/admin`, `/x/.;/admin`, `/x/.;/admin`},
		{`/x\..;\admin`, `/x/..;/admin`, `/x/..;/admin`, `/x/..;/admin`},
		{`/x/..;\admin`, `/`, `/`, `/`},
		{`/x\..;/admin`, `/x/..;/admin`, `/x/..;/admin`, `/x/..;/admin`},
		{`/x/..;a%2fb/admin`, `/admin`, `/admin`, `/b/admin`},
		{`/x/..;%00/admin`, `/admin`, `/admin`, `/admin`},
		{`/a;..;/b`, `/a;..;/b`, `/a;..;/b`, `/a;..;/b`},
		{`/a/...;/b`, `/a/...;/b`, `/a/...;/b`, `/a/...;/b`},
		{`/a/..;?x`, `/?x`, `/?x`, `/?x`},
		{`/a/..;?b/..;/c`, `/?b/..;/c`, `/?b/..;/c`, `/?b/..;/c`},
		{`/a/.;`, `/a/`, `/a/`, `/a/`},
		{`/x/;..;/admin`, `/x/;..;/admin`, `/x/;..;/admin`, `/x/;..;/admin`},
		{`/x/..;;/admin`, `/admin`, `/admin`, `/admin`},
		{`/x/..;a;b/admin`, `/admin`, `/admin`, `/admin`},
		{`/x//..;/admin`, `/x/admin`, `/x/admin`, `/x/admin`},
		{`/x/.;/..;/admin`, `/admin`, `/admin`, `/admin`},
		{`/a%3f/../b`, `/b`, `/b`, `/b`},
		{`/x%5c..;%5cadmin`, `/x%5c..;%5cadmin`, `/x%5c..;%5cadmin`, `/x/..;/admin`},
		{`/x%2f..;%2fadmin`, `/x%2f..;%2fadmin`, `/x%2f..;%2fadmin`, `/admin`},
		{`/x/y/..;z/../..;/q`, `/q`, `/q`, `/q`},
		{`/%2fa/../b`, `/b`, `/b`, `/b`},
		{`/a?b#c`, `400`, `400`, `400`},
		{`/x;/../admin`, `/admin`, `/admin`, `/admin`},
		{`/%e2/../a`, `/a`, `/a`, `/a`},
		{`/x/..;a\b/c`, `/c`, `/c`, `/c`},
	} {
		for i, m := range []*managerv3.HttpConnectionManager{base, merge, decode} {
			path, answer := pathOf(m, tc[0])
			if answer != "" {
				path = answer[:3]
			}
			if path != tc[i+1] {
				t.Errorf("%s becomes %s, want %s (%d)", tc[0], path, tc[i+1], i)
			}
		}
	}
	for action, want := range map[managerv3.HttpConnectionManager_PathWithEscapedSlashesAction]string{
		managerv3.HttpConnectionManager_KEEP_UNCHANGED:        "/x%2f..%2fadmin?q",
		managerv3.HttpConnectionManager_UNESCAPE_AND_REDIRECT: "307: redirected to the path /admin?q",
		managerv3.HttpConnectionManager_REJECT_REQUEST:        "400: ",
	} {
		m := &managerv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true), PathWithEscapedSlashesAction: action}
		path, answer := pathOf(m, "/x%2f..%2fadmin?q")
		if got := cmp.Or(answer, path); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", action, got, want)
		}
	}
	if path, answer := pathOf(&managerv3.HttpConnectionManager{}, `/x/..;/%00`); path != `/x/..;/%00` || answer != "" {
		t.Errorf("not normalized: %s %s", path, answer)
	}
}
