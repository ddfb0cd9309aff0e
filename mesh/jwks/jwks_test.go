package jwks

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const oneKey = `{"keys":[{"kty":"EC","kid":"a","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}`

// world answers requests by their URL. The answer REDIRECT URL redirects.
type world struct {
	mu      sync.Mutex
	answers map[string]string // "" and what is not there is an error
	asked   []string
	delay   time.Duration
	slow    string // the prefix of what answers after an hour
}

func (w *world) set(url, answer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[url] = answer
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked)
}

func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.asked = append(w.asked, r.URL.String())
	answer, delay := w.answers[r.URL.String()], w.delay
	w.mu.Unlock()
	if w.slow != "" && strings.HasPrefix(r.URL.String(), w.slow) {
		delay = time.Hour
	}
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if answer == "" {
		return nil, errors.New("connection refused")
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: io.NopCloser(strings.NewReader(answer)), Request: r}
	if to, ok := strings.CutPrefix(answer, "REDIRECT "); ok {
		resp.StatusCode = http.StatusFound
		resp.Header.Set("Location", to)
	}
	return resp, nil
}

// running starts a Store that wants sources.
func running(t *testing.T, w *world, wanted ...Source) (s *Store, changed func() []Source) {
	var mu sync.Mutex
	var all []Source
	s = New(Config{Transport: w, Changed: func(from Source) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, from)
	}})
	s.Want(ofOne(wanted...))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return s, func() []Source {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// ofOne are sources that one namespace wants.
func ofOne(sources ...Source) map[Source][]string {
	wanted := make(map[Source][]string)
	for _, from := range sources {
		wanted[from] = []string{"shop"}
	}
	return wanted
}

func TestKeysStayUntilOthersCanBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := Source{Issuer: "a", URI: "http://a/keys"}
		w := &world{answers: map[string]string{from.URI: oneKey}}
		s, changed := running(t, w, from)
		if s.Keys(from) != oneKey || len(changed()) != 1 || s.Pending([]Source{from}) {
			t.Fatalf("the keys are %q, told %d times", s.Keys(from), len(changed()))
		}
		w.set(from.URI, "")
		time.Sleep(refreshAfter + time.Second)
		if s.Keys(from) != oneKey || w.count() < 2 {
			t.Errorf("after a failure the keys are %q, asked %d times", s.Keys(from), w.count())
		}
		w.set(from.URI, "{}")
		time.Sleep(lastRetry)
		if s.Keys(from) != oneKey {
			t.Error("an answer without keys takes the place of keys")
		}
		other := strings.Replace(oneKey, `"a"`, `"b"`, 1)
		w.set(from.URI, other)
		time.Sleep(2 * lastRetry)
		if s.Keys(from) != other || len(changed()) != 2 {
			t.Errorf("the keys are %q, told %d times", s.Keys(from), len(changed()))
		}
	})
}

func TestAFailureIsRepeatedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := Source{URI: "http://a/keys"}
		w := &world{answers: map[string]string{}}
		_, changed := running(t, w, from)
		time.Sleep(10 * time.Second)
		if n := w.count(); n != 4 { // at 0, 1, 3 and 7 s
			t.Errorf("asked %d times in 10 s", n)
		}
		before := w.count()
		time.Sleep(10 * time.Minute)
		if n := w.count() - before; n < 10 || n > 12 {
			t.Errorf("asked %d times in 10 minutes, want once a minute", n)
		}
		if len(changed()) != 1 {
			t.Errorf("told %d times of the first attempt", len(changed()))
		}
	})
}

func TestTheFirstAttemptIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, gone := Source{URI: "http://slow/keys", Timeout: 3 * time.Second}, Source{URI: "http://gone/keys"}
		w := &world{answers: map[string]string{slow.URI: oneKey}, delay: time.Minute}
		s, _ := running(t, w, slow, gone)
		if !s.Pending([]Source{gone, slow}) {
			t.Error("nothing is pending")
		}
		start := time.Now()
		s.Attempted(context.Background(), []Source{slow, {URI: "not wanted"}})
		if waited := time.Since(start); waited != 3*time.Second {
			t.Errorf("waited for %s, and its timeout is 3 s", waited)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		s.Attempted(ctx, []Source{gone})
		if !s.Pending([]Source{gone}) {
			t.Error("the other one has been attempted before its timeout")
		}
	})
}

func TestSourcesThatAreNotWantedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Source{URI: "http://a/keys"}, Source{URI: "http://b/keys"}
		w := &world{answers: map[string]string{a.URI: oneKey, b.URI: oneKey}}
		s, _ := running(t, w, a)
		s.Want(ofOne(b))
		synctest.Wait()
		if s.Keys(a) != "" || s.Keys(b) != oneKey {
			t.Errorf("a has %q, b has %q", s.Keys(a), s.Keys(b))
		}
		before := w.count()
		s.Want(ofOne(b))
		synctest.Wait()
		if w.count() != before {
			t.Error("what is wanted again is asked for again")
		}
	})
}

func TestTheIssuerSaysWhereItsKeysAre(t *testing.T) {
	const at = "https://a.example/.well-known/openid-configuration"
	for name, tc := range map[string]struct {
		answers map[string]string
		onlyTLS bool
		want    string // part of the error; "" for none
	}{
		"its own":             {map[string]string{at: `{"issuer":"https://a.example","jwks_uri":"https://k/keys"}`, "https://k/keys": oneKey}, true, ""},
		"of another issuer":   {map[string]string{at: `{"issuer":"https://b.example","jwks_uri":"https://k/keys"}`, "https://k/keys": oneKey}, false, `of the issuer "https://b.example"`},
		"in plaintext":        {map[string]string{at: `{"issuer":"https://a.example","jwks_uri":"http://k/keys"}`, "http://k/keys": oneKey}, true, "want https"},
		"a file":              {map[string]string{at: `{"issuer":"https://a.example","jwks_uri":"file:///etc/passwd"}`}, false, "want http or https"},
		"out of TLS":          {map[string]string{at: "REDIRECT http://a.example/x", "http://a.example/x": "{}"}, false, "want https"},
		"round and round":     {map[string]string{at: "REDIRECT " + at}, false, "more than 5 redirects"},
		"not JSON":            {map[string]string{at: "<html>"}, false, "not the JSON"},
		"no keys":             {map[string]string{at: `{"issuer":"https://a.example","jwks_uri":"https://k/keys"}`, "https://k/keys": `{"keys":[{"kty":"oct","k":"AAAA"}]}`}, false, ErrNoKeys.Error()},
		"more than it may be": {map[string]string{at: strings.Repeat(" ", MaxKeys+1)}, false, "more than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Client{Transport: &world{answers: tc.answers}, Timeout: time.Second, OnlyTLS: tc.onlyTLS}
			keys, err := c.Discover(context.Background(), "https://a.example")
			switch {
			case tc.want == "" && (err != nil || len(keys) != 1):
				t.Errorf("%d keys: %v", len(keys), err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("the error is %v, want %s", err, tc.want)
			}
		})
	}
}

// What an issuer writes around its keys reaches no proxy: Envoy rejects the listener for some of it, and the configuration
// of a proxy must be valid UTF-8.
func TestOnlyKeysThatEnvoyVerifiesWithArePassedOn(t *testing.T) {
	key := strings.TrimSuffix(strings.TrimPrefix(oneKey, `{"keys":[`), "]}")
	with := func(field string) string { return strings.TrimSuffix(key, "}") + "," + field + "}" }
	rsa := func(n, e string) string { return `{"kty":"RSA","kid":"r","n":"` + n + `","e":"` + e + `"}` }
	for name, tc := range map[string]struct{ text, want string }{
		"as it is":                 {oneKey, oneKey},
		"a name in capitals":       {strings.Replace(oneKey, "keys", "KEYS", 1), oneKey},
		"a name twice":             {`{"keys":[],"keys":[` + key + `]}`, oneKey},
		"other members":            {`{"keys":[` + with(`"more":[1]`) + `],"a":"` + "\xff" + `"}`, oneKey},
		"an id that is not UTF-8":  {strings.Replace(oneKey, `"kid":"a"`, `"kid":"a`+"\xff"+`"`, 1), strings.Replace(oneKey, `"kid":"a"`, `"kid":"a`+"\uFFFD"+`"`, 1)},
		"beside a symmetric key":   {`{"keys":[{"kty":"oct","k":"AAAA"},` + key + `]}`, oneKey},
		"its algorithm":            {`{"keys":[` + with(`"alg":"ES256"`) + `]}`, `{"keys":[` + strings.Replace(key, `"crv":"P-256",`, `"crv":"P-256","alg":"ES256",`, 1) + `]}`},
		"another algorithm":        {`{"keys":[` + with(`"alg":"RS256"`) + `]}`, ""},
		"for encryption":           {`{"keys":[` + with(`"use":"enc"`) + `]}`, ""},
		"an RSA key that is short": {`{"keys":[` + rsa(strings.Repeat("_", 86), "AQAB") + `]}`, ""},
		"an even exponent":         {`{"keys":[` + rsa(strings.Repeat("_", 342), "AQAC") + `]}`, ""},
		"beside no keys":           {`{"keys":[{},1,{"kty":"AKP","pub":"AA"},` + key + `]}`, oneKey},
		"beside another":           {`{"keys":[` + with(`"use":"enc"`) + "," + key + `]}`, oneKey},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := Parse([]byte(tc.text))
			if tc.want == "" {
				if !errors.Is(err, ErrNoKeys) {
					t.Fatalf("%d keys, and the error is %v", len(keys), err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := Format(keys); err != nil || got != tc.want {
				t.Errorf("%v: the keys are %s, want %s", err, got, tc.want)
			}
		})
	}
}

func TestWhetherEnvoyFindsAKey(t *testing.T) {
	for text, want := range map[string]bool{
		oneKey: true, `{"keys":[]}`: false, `{}`: false, "x": false, `{"keys":[{},{"kty":"oct","k":"AAAA"}]}`: true,
		`{"keys":[{"kty":"oct","k":"AAAA","alg":"RS256"}]}`: false, strings.Replace(oneKey, `"crv"`, `"use":"enc","crv"`, 1): false,
	} {
		if got := IsUsable([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestIssuersThatDoNotAnswerDelayTheirOwnNamespaceAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{answers: map[string]string{"http://good/keys": oneKey}, slow: "http://slow/"}
		wanted := make(map[Source][]string)
		for i := range 100 {
			wanted[Source{URI: "http://slow/" + strconv.Itoa(i), Timeout: time.Minute}] = []string{"other"}
		}
		s, _ := running(t, w)
		s.Want(wanted)
		synctest.Wait()
		if w.count() != maxFetchesOf {
			t.Fatalf("%d answers are waited for, want %d", w.count(), maxFetchesOf)
		}
		good := Source{URI: "http://good/keys"}
		wanted[good] = []string{"shop"}
		s.Want(wanted)
		synctest.Wait()
		if s.Keys(good) != oneKey {
			t.Error("it is not asked for at once")
		}
		shared := Source{URI: "http://good/keys", Timeout: time.Second}
		wanted[shared] = []string{"other", "shop"}
		s.Want(wanted)
		synctest.Wait()
		if s.Keys(shared) != oneKey {
			t.Error("what another namespace wants, too, is not asked for at once")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := w.count(); n != 2*maxFetchesOf+2 {
			t.Errorf("%d answers were asked for after a minute, want %d", n, 2*maxFetchesOf+2)
		}
	})
}

func TestKeysSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	from, other := Source{Issuer: "a", URI: "http://a/keys", Timeout: time.Second}, Source{Issuer: "http://b"}
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Transport: &world{answers: map[string]string{from.URI: oneKey}}, Changed: func(Source) {}})
		if err := s.Load(path); err != nil {
			t.Fatal(err)
		}
		s.Want(ofOne(from, other))
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		go func() { _ = s.Run(ctx) }()
		synctest.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		s := New(Config{Transport: w, Changed: func(Source) {}})
		if err := s.Load(path); err != nil {
			t.Fatal(err)
		}
		s.Want(ofOne(from, other))
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		go func() { _ = s.Run(ctx) }()
		synctest.Wait()
		if w.count() != 2 || s.Keys(from) != oneKey || s.Keys(other) != "" {
			t.Errorf("asked %d times; the keys are %q and %q", w.count(), s.Keys(from), s.Keys(other))
		}
	})
	for _, text := range []string{"x", `[{"issuer":"a","keys":{}}]`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := New(Config{}).Load(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error is %v", text, err)
		}
	}
}

// Many sources answer at the start, and each change of the file costs all of them.
func TestKeysThatChangeTogetherAreWrittenOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	written := func() int {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0
		}
		return strings.Count(string(text), `"issuer"`)
	}
	synctest.Test(t, func(t *testing.T) {
		w := &world{answers: make(map[string]string)}
		var sources []Source
		for i := range 50 {
			sources = append(sources, Source{Issuer: "a", URI: "http://a/" + strconv.Itoa(i)})
			w.answers[sources[i].URI] = oneKey
		}
		s := New(Config{Transport: w, Changed: func(Source) {}})
		if err := s.Load(path); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		s.Want(ofOne(sources[:40]...))
		synctest.Wait()
		if n := written(); n != 0 || s.Keys(sources[39]) != oneKey {
			t.Errorf("the file has %d sources at once", n)
		}
		time.Sleep(writeDelay)
		synctest.Wait()
		if n := written(); n != 40 {
			t.Errorf("the file has %d sources, want 40", n)
		}
		s.Want(ofOne(sources...))
		synctest.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := written(); n != 50 {
			t.Errorf("at the end the file has %d sources, want 50", n)
		}
	})
}

func TestWhatNobodyWantsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{slow: "http://slow/"}
		slow := func(i int) Source { return Source{URI: "http://slow/" + strconv.Itoa(i), Timeout: time.Minute} }
		s, changed := running(t, w, slow(0), slow(1), slow(2), slow(3), slow(4), slow(5))
		s.Want(ofOne(slow(6), slow(7)))
		synctest.Wait()
		if got := w.asked[maxFetchesOf:]; len(got) != 2 || !strings.HasSuffix(slices.Max(got), "7") {
			t.Errorf("then %v were asked", got)
		}
		if len(changed()) != 0 {
			t.Errorf("%v are told of", changed())
		}
	})
}
