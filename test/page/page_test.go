package page

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-xds/holdfast/agent/admin/page"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

var screenshots = flag.Bool("screenshots", false, "write the screenshots in docs anew")

// screenshot writes docs/NAME.png with -screenshots, and makes it in any case.
func (b *browser) screenshot(name string, l look) {
	b.Helper()
	b.as(l)
	png := call(b, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{}).Data
	file := filepath.Join(envoytest.Root(b), "docs", name+".png")
	if *screenshots {
		if err := os.WriteFile(file, png, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		b.Errorf("%v: make it with `go test . -screenshots` in test/page", err)
	}
}

// A browser gets one page, which is small, needs no other origin, and can do nothing but ask; others get text.
func TestABrowserGetsThePageAndOthersText(t *testing.T) {
	m := newMesh(t, false)
	get := func(accept string) (*http.Response, string) {
		req, err := http.NewRequest(http.MethodGet, "http://"+m.admin+"/", nil)
		m.check(err)
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		m.check(err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		m.check(err)
		return resp, string(body)
	}
	resp, body := get("text/html,application/xhtml+xml,*/*;q=0.8")
	if len(body) > page.MaxSize || !strings.HasPrefix(body, "<!doctype html>") {
		t.Errorf("the page has %d bytes, at most %d are allowed", len(body), page.MaxSize)
	}
	policy := resp.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("Content-Security-Policy: %s lacks %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("Content-Security-Policy: %s", policy)
	}
	if resp, body := get("*/*"); !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") || !strings.HasPrefix(body, "holdfast ") {
		t.Errorf("curl gets %s %.100s", resp.Header.Get("Content-Type"), body)
	}
}

// What happens is on the page without its being loaded again: a change, a NACK, a frozen agent, the loss of the control
// plane and of the agent.
func TestThePageShowsWhatHappens(t *testing.T) {
	m := newMesh(t, false)
	b := newBrowser(t, "http://"+m.admin+"/")
	b.shows("#banner", "Live", m.cpAddr)
	b.shows("#problems", "None.")
	b.shows("#away", "Nothing would be missing", "LDS")
	b.shows("#types", "node web-1", "CDS", "complete")
	b.shows("#upstreams", m.cpAddr, "in use")
	b.shows("#clients", "web-1", "delta")
	b.shows("#certificates", "default", "left of", "spiffe://example.org/ns/shop/sa/web")
	b.shows("#references", "LDS/ingress", "RDS/ingress", "CDS/c1")
	b.shows("#events", "control plane connected")
	eval[bool](b, "window.mark = true") // is gone if the page is loaded again
	b.until(func() error {
		if eval[int](b, "document.querySelectorAll('[role=meter]').length") == 0 {
			return errors.New("there is no bar")
		}
		return nil
	})

	m.set(xdstest.Route("ingress", "c2"))
	m.serves("v2")
	b.shows("#events", "RDS: 1 changed")
	b.shows("#references", "CDS/c2")

	// A reference that leads nowhere.
	m.set(xdstest.Route("ingress", "nowhere"))
	b.shows("#references", "1 reference to what is not there", "CDS/nowhere")
	b.shows("#problems", "nowhere", "holdfast explain")
	if color := eval[string](b, "getComputedStyle(document.querySelector('#references .problem span.bad')).color"); color != "rgb(163, 20, 28)" {
		t.Errorf("a dangling reference is %s", color)
	}
	m.set(xdstest.Route("ingress", "c1"))
	b.shows("#problems", "None.")

	// A NACK: the port is taken.
	m.set(m.takenListener())
	b.shows("#problems", "LDS: 1 resource NACKed", "error")
	b.shows("#references", "NACKed")
	b.shows("#events", "NACKed")
	b.screenshot("page", look{"light", 1600, 1150})
	m.resourceWithANack(b)
	m.set(xdstest.Listener("ingress", uint32(m.port), "ingress"))
	b.shows("#problems", "None.")

	// The control plane goes away, and comes back.
	m.cp.Stop()
	b.shows("#banner", "Last known good", "the last one answered at")
	b.shows("#upstreams", "not connected", "connection refused")
	b.screenshot("page-phone", look{"dark", 400, 1100})
	b.as(look{"light", 1600, 1150})
	m.serveControlPlane()
	b.shows("#banner", "Live")

	// The agent restarts.
	b.leaving()
	m.agent.Kill()
	b.shows("#banner", "The agent does not answer")
	m.startAgent()
	b.shows("#banner", "Live")
	m.set(xdstest.Route("ingress", "c2"))
	m.serves("v2")
	b.shows("#references", "CDS/c2")
	b.shows("#events", "RDS: 1 changed")
	if !eval[bool](b, "window.mark === true") {
		t.Error("the page was loaded again")
	}
}

// resourceWithANack looks at the listener that Envoy NACKs.
func (m *mesh) resourceWithANack(b *browser) {
	m.Helper()
	b.do(chromedp.Click(`#references [data-key="LDS/ingress"]`))
	b.shows("#resource", "LDS/ingress", "Envoy says", "Address already in use", "Clients get")
	b.shows("#resource", "socket_address", "port_value: "+fmt.Sprint(m.port)) // what is served
	b.shows("#difference", fmt.Sprintf("-    port_value: %d", m.port), "served", "held")
	b.shows("#resource", "Versions that clients accepted", "now")
	b.screenshot("page-resource", look{"light", 1600, 1150})
	if hash := eval[string](b, "location.hash"); hash != "#type=LDS&name=ingress&node=web-1" {
		m.Errorf("the address has %s", hash)
	}
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(func() error {
		if eval[bool](b, "document.querySelector('dialog').open") || eval[string](b, "location.hash") != "" {
			return fmt.Errorf("the dialog is open")
		}
		return nil
	})
	if focused := eval[string](b, "document.activeElement.dataset.key ?? ''"); focused != "LDS/ingress" {
		m.Errorf("after the dialog the focus is on %q", focused)
	}
}

// A person without a mouse gets everywhere; what is searched for is found; and a name that would be HTML is text.
func TestThePageByKeyboardAndWithHostileNames(t *testing.T) {
	const hostile = `<img src=x onerror=alert(1)>"'&`
	m := newMesh(t, false)
	m.set(xdstest.Cluster(hostile, ""), xdstest.CLA(hostile, m.v1.Addr))
	b := newBrowser(t, "http://"+m.admin+"/")
	b.shows("#references", "CDS/"+hostile)
	b.shows("#events", hostile)
	if n := eval[int](b, "document.images.length"); n != 0 {
		t.Errorf("the page has %d images", n)
	}
	b.do(chromedp.KeyEvent(kb.Tab)) // the link that skips what is above
	if got := eval[string](b, "document.activeElement.innerText"); got != "Skip to the content" {
		t.Errorf("the first thing that can be reached is %q", got)
	}
	b.do(chromedp.Focus("#search"), chromedp.KeyEvent("IMG"))
	b.shows("#search-note", "2 of ")
	b.lacks("#references .body", "LDS/ingress")
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter)) // over the region to the first result
	b.shows("#h-resource", hostile)
	b.shows("#resource pre[aria-label^=Content]", hostile)
	b.shows("#resource", `holdfast explain --admin `+m.admin+` 'CDS/<img src=x onerror=alert(1)>"'\''&'`)
	// The address leads to the same.
	b.do(chromedp.Reload())
	b.shows("#h-resource", hostile)
}

// With a Unix socket, as it is by default, `holdfast page` leads to the page, for whoever has the address that it prints;
// and an agent that restarts is found again.
func TestThePageOfAUnixSocket(t *testing.T) {
	m := newMesh(t, true)
	p, err := testbed.Start("page", filepath.Join(m.dir, "page.log"), m.holdfast(), "page", "--admin", m.admin)
	m.check(err)
	t.Cleanup(func() {
		if err := p.Stop(limit); err != nil {
			t.Errorf("holdfast page at SIGTERM: %v\n%s", err, p.Tail(5))
		}
	})
	var address string
	m.check(p.Wait(limit, func() error {
		log, err := os.ReadFile(filepath.Join(m.dir, "page.log"))
		address = strings.TrimSpace(string(log))
		if err == nil && !strings.HasPrefix(address, "http://127.0.0.1:") {
			err = fmt.Errorf("it says %q", log)
		}
		return err
	}))
	bare, _, _ := strings.Cut(address, "?")
	for _, wrong := range []string{bare, bare + "?token=" + strings.Repeat("A", 26), bare + "status.json"} {
		if status, body, err := testbed.Get(wrong); err != nil || status != http.StatusForbidden {
			t.Errorf("%s: %d %q, %v", wrong, status, body, err)
		}
	}
	b := newBrowser(t, address)
	b.shows("#banner", "Live", m.cpAddr)
	b.shows("#commands", "holdfast rollback --admin "+m.admin)
	if got := eval[string](b, "location.search"); got != "" {
		t.Errorf("the address still has the token: %s", got)
	}
	b.leaving()
	m.agent.Kill()
	b.shows("#banner", "The agent does not answer")
	m.startAgent()
	b.shows("#banner", "Live")
	m.set(xdstest.Route("ingress", "c2"))
	m.serves("v2")
	b.shows("#events", "RDS: 1 changed")
}

// The page has no violation that axe-core finds, in light and dark, on a phone and on a large screen, also with problems
// and with a resource; and nothing is beside the screen.
func TestThePageIsAccessible(t *testing.T) {
	script, err := os.ReadFile(found(t, "axe.js"))
	if err != nil {
		t.Fatal(err)
	}
	m := newMesh(t, false)
	b := newBrowser(t, "http://"+m.admin+"/")
	b.shows("#banner", "Live")
	examine := func(what string) {
		t.Helper()
		for _, l := range []look{{"light", 1600, 1200}, {"dark", 1600, 1200}, {"light", 400, 800}, {"dark", 400, 800}} {
			b.as(l)
			eval[any](b, string(script)+"; null")
			var found []struct {
				ID, Help string
				Nodes    []struct {
					HTML           string `json:"html"`
					FailureSummary string
				}
			}
			if err := json.Unmarshal([]byte(eval[string](b, "axe.run().then(r => JSON.stringify(r.violations))")), &found); err != nil {
				t.Fatal(err)
			}
			for _, v := range found {
				for _, n := range v.Nodes {
					t.Errorf("%s, %s, %d pixels: %s (%s): %s\n%s", what, l.scheme, l.width, v.Help, v.ID, n.HTML, n.FailureSummary)
				}
			}
			if w := eval[int64](b, "document.documentElement.scrollWidth"); w > l.width {
				t.Errorf("%s: the page is %d pixels wide on a screen of %d", what, w, l.width)
			}
		}
	}
	examine("all is well")
	m.set(m.takenListener(), xdstest.Route("ingress", "nowhere"))
	b.shows("#problems", "NACKed", "nowhere")
	b.shows("#references", "NACKed", "what is not there")
	examine("problems")
	eval[any](b, `document.querySelector('#references [data-key="LDS/ingress"]').click(), null`)
	b.shows("#difference", "port_value")
	examine("a resource")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.leaving()
	m.agent.Kill()
	b.shows("#banner", "does not answer")
	examine("the agent is gone")
}
