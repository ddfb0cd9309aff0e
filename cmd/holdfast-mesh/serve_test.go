package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/authn"
)

func TestTheFlagsOfIssuersAreJoined(t *testing.T) {
	const a, b = "https://a.example", "https://b.example/?x=y"
	issuers := []string{a, b}
	for _, tc := range []struct {
		name                   string
		issuers, keys, domains []string
		ca                     string
		want                   []authn.Issuer
		err                    string
	}{
		{"none", nil, nil, nil, "", nil, ""},
		{"issuers alone", issuers, nil, nil, "ca.pem", []authn.Issuer{{URL: a, CA: "ca.pem"}, {URL: b, CA: "ca.pem"}}, ""},
		{"all", issuers, []string{b + "=b.json", a + "=a.json"}, []string{b + "=b.example", a + "=cluster.local"}, "",
			[]authn.Issuer{{URL: a, Keys: "a.json", TrustDomain: "cluster.local"}, {URL: b, Keys: "b.json", TrustDomain: "b.example"}}, ""},
		{"one trust domain", issuers, nil, []string{b + "=b.example"}, "", []authn.Issuer{{URL: a}, {URL: b, TrustDomain: "b.example"}}, ""},
		{"a trust domain without a URL", issuers, nil, []string{"b.example"}, "", nil, `--token-trust-domain "b.example": want URL=DOMAIN`},
		{"a trust domain that is empty", issuers, nil, []string{a + "="}, "", nil, `--token-trust-domain "` + a + `=": want URL=DOMAIN`},
		{"two trust domains of one", issuers, nil, []string{a + "=a.example", a + "=b.example"}, "", nil, "--token-trust-domain " + a + ": given twice"},
		{"a trust domain of nobody", issuers, nil, []string{"https://c.example=c"}, "", nil, "--token-trust-domain https://c.example: there is no --token-issuer of this URL"},
		{"keys without a URL", issuers, []string{"a.json"}, nil, "", nil, `--token-keys "a.json": want URL=FILE`},
		{"two files of one", issuers, []string{a + "=a", a + "=b"}, nil, "", nil, "--token-keys " + a + ": given twice"},
		{"keys of nobody", issuers, []string{"https://c.example=c"}, nil, "", nil, "--token-keys https://c.example: there is no --token-issuer of this URL"},
		{"a CA that nobody needs", issuers, []string{a + "=a", b + "=b"}, nil, "ca.pem", nil, "--token-ca: there is no --token-issuer that is asked for its keys"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &serveFlags{issuers: tc.issuers, keys: tc.keys, domains: tc.domains, tokenCA: tc.ca}
			err := f.readIssuers()
			switch {
			case tc.err != "":
				if err == nil || err.Error() != tc.err {
					t.Errorf("%v, want %s", err, tc.err)
				}
			case err != nil || !slices.Equal(f.cfg.Authn.Issuers, tc.want):
				t.Errorf("%+v, %v", f.cfg.Authn.Issuers, err)
			}
		})
	}
}

func TestTheFlagsOfReplicasAreChecked(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  mesh.Config
		err  string
	}{
		{"none", mesh.Config{}, ""},
		{"all", mesh.Config{MaxProxies: 1000, MaxConnectionAge: 30 * time.Minute, DrainTime: 20 * time.Second}, ""},
		{"a negative number of proxies", mesh.Config{MaxProxies: -1}, "--max-proxies -1: want a number of proxies, or 0 for any number"},
		{"connections that are hardly opened", mesh.Config{MaxConnectionAge: time.Second}, "--max-connection-age 1s: want at least 10s"},
		{"a negative age", mesh.Config{MaxConnectionAge: -time.Hour}, "--max-connection-age -1h0m0s: want at least 10s"},
		{"a negative time to drain", mesh.Config{DrainTime: -1}, "--drain-time -1ns: want 0 to 10m0s"},
		{"an end that nobody waits for", mesh.Config{DrainTime: time.Hour}, "--drain-time 1h0m0s: want 0 to 10m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &serveFlags{cfg: tc.cfg, age: ageOfStore}
			f.cfg.MaxLifetime, f.cfg.Throttle = time.Hour, 1
			if err := f.check(); (err == nil) != (tc.err == "") || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
				t.Errorf("%v, want %q", err, tc.err)
			}
		})
	}
}
