package downstream_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Envoy's reason for a violated constraint contains the whole resource. The key in it must not
// reach the state, and so the control plane, nor the log.
func TestTheReasonOfANACKIsStoredWithoutTheKey(t *testing.T) {
	const key = "-----BEGIN PRIVATE KEY-----\nPLANTED-KEY-0123456789\n-----END PRIVATE KEY-----\n"
	secret := xdstest.Secret("s", []byte("certificate"), []byte(key))
	dump, err := prototext.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	for name, said := range map[string]string{
		"a dump":                "goo.gle/debugstr  " + string(dump) + " : Proto constraint validation failed (X: too short)",
		"a dump without marker": string(dump) + ": Proto constraint validation failed (X: too short)",
		"base64":                "cannot use " + base64.StdEncoding.EncodeToString([]byte(key)) + ": Proto constraint validation failed (X: too short)",
		"megabytes":             strings.Repeat(key, 50_000) + ": Proto constraint validation failed (X: too short)",
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			cfg := downstream.Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			inBothForms(t, cfg, func(s *service) {
				var upstream error
				r := xdstest.Resource(secret, "1")
				s.state.Cache().Apply(xds.Update{Source: "test", Type: r.Type, Resources: []*xds.Resource{r}}, nil)
				c := xdstest.NewClient(s.dial(), xdstest.ClientConfig{Protocol: s.form, Reject: func(string, *discoveryv3.Resource) error { return errors.New(said) }})
				if err := c.Connect(s.Context()); err != nil {
					t.Fatal(err)
				}
				s.stops = append(s.stops, c.Close)
				c.Subscribe(xds.SecretType, "s")
				s.quiet()
				// The client NACKs the repeated content with the same reason.
				s.state.Cache().Apply(xds.Update{Source: "test", Type: r.Type, Resources: []*xds.Resource{r}}, func(err error) { upstream = err })
				s.quiet()
				cached := s.state.Cache().Resources(xds.SecretType)
				if len(cached) != 1 || cached[0].Status != xds.Nacked {
					t.Fatalf("cached: %+v", cached)
				}
				for where, text := range map[string]string{"the state": cached[0].Reason, "the control plane": errors.Join(upstream).Error()} {
					if name != "megabytes" && !strings.HasSuffix(text, "Proto constraint validation failed (X: too short)") {
						t.Errorf("%s: the sentence is gone: %q", where, text)
					}
					if len(text) > redact.MaxReason+len("xdstest: ") {
						t.Errorf("%s: %d bytes", where, len(text))
					}
				}
				for where, text := range map[string]string{"the state": cached[0].Reason, "the control plane": upstream.Error(), "the log": log.String()} {
					for _, form := range []string{"PLANTED-KEY", "UExBTlRFRC1LRVkt"} {
						if strings.Contains(text, form) {
							t.Errorf("%s has %s: %.200q", where, form, text)
						}
					}
				}
				if !strings.Contains(log.String(), "level=WARN") || log.Len() > 100_000 {
					t.Errorf("the log has %d bytes:\n%.2000s", log.Len(), log.String())
				}
			})
		})
	}
}

// Envoy's reason may quote a cluster that it ACKed before, and that was in the same response.
func TestTheReasonOfANACKMayConcernAnACKedResource(t *testing.T) {
	inBothForms(t, downstream.Config{}, func(s *service) {
		old := xdstest.StaticCluster("old", "127.0.0.1:1")
		old.AltStatName = "-----BEGIN PRIVATE KEY-----\nPLANTED-KEY-0123456789\n-----END PRIVATE KEY-----\n"
		s.put(old)
		c := xdstest.NewClient(s.dial(), xdstest.ClientConfig{Protocol: s.form, Reject: func(_ string, r *discoveryv3.Resource) error {
			if r.GetName() == "new" {
				return errors.New("old: PLANTED-KEY-0123456789: limit reached; new: limit reached")
			}
			return nil
		}})
		if err := c.Connect(s.Context()); err != nil {
			t.Fatal(err)
		}
		s.stops = append(s.stops, c.Close)
		c.Subscribe(xds.ClusterType)
		s.quiet()
		s.put(old, xdstest.StaticCluster("new", "127.0.0.1:2"))
		s.quiet()
		for _, r := range s.state.Cache().Resources(xds.ClusterType) {
			if r.Name == "new" && r.Reason != "xdstest: new: old: [redacted]: limit reached; new: limit reached" {
				t.Errorf("%s: %q", r.Status, r.Reason)
			}
		}
	})
}
