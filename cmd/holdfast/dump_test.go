package main

import (
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/cli"
)

func TestADumpIsATableOrYAML(t *testing.T) {
	resource := func(more map[string]any) map[string]any {
		all := map[string]any{"type": "CDS", "name": "a", "version": "2", "standing": "accepted", "source": "xds:1", "resource": map[string]any{"name": "a"}}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	addr := answering(t, map[string]any{"/dump": map[string]any{"resources": []any{
		resource(map[string]any{"changed": "2026-01-02T03:04:05Z"}),
		resource(map[string]any{"name": "nacked", "standing": "rejected", "good_version": "1", "reason": "no\nsuch \x1b thing"}),
		resource(map[string]any{"name": "never", "standing": "rejected"}),
		resource(map[string]any{"name": "frozen", "frozen": true, "good_version": "1"}),
		resource(map[string]any{"name": "crashed", "fell_back": true}),
	}}})
	const table = `TYPE  NAME     STANDING  VERSION  SERVED  SINCE                 SOURCE  PROBLEM
CDS   a        accepted  2        2       2026-01-02T03:04:05Z  xds:1   -
CDS   nacked   rejected  2        1       -                     xds:1   no such � thing
CDS   never    rejected  2        -       -                     xds:1   -
CDS   frozen   accepted  2        1       -                     xds:1   -
CDS   crashed  accepted  2        -       -                     xds:1   -
`
	for format, want := range map[string]string{"table": table, "text": table, "yaml": "resources:\n  - changed: \"2026-01-02T03:04:05Z\"\n    name: a\n"} {
		if got := ask(t, "dump", "--admin", addr, "-o", format); got.code != cli.ExitOK || !strings.Contains(got.out, want) {
			t.Errorf("-o %s: exit %d %s\n%s\nwant\n%s", format, got.code, got.errors, got.out, want)
		}
	}
	if got := ask(t, "dump", "--admin", addr, "-o", "xml"); got.code != cli.ExitUsage || !strings.Contains(got.errors, `"xml": want json, yaml or table`) {
		t.Errorf("%+v", got)
	}
}
