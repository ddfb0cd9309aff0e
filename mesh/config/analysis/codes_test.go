package analysis_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/dir"
)

// root is the directory of the module.
var root = filepath.Join("..", "..", "..")

// elsewhere are the tests that provoke the codes of which no files of documents are an example.
var elsewhere = map[config.Code]string{
	config.StoreKeyIgnored:     "mesh/config/etcd/source_test.go",
	config.StoreLacks:          "mesh/config/etcd/source_test.go",
	config.AgesUnknown:         "mesh/config/etcd/ages_test.go",
	config.OwnerByTimestamp:    "test/peers/etcd/ages_test.go",
	config.PoliciesNotCompared: "mesh/config/references_rules_test.go",
}

// Each code is in the table, in order, says what to do, and has documents that provoke it: testdata/codes, or a test that names it.
func TestEveryCodeIsProvoked(t *testing.T) {
	last := config.Code("")
	for _, info := range config.Codes {
		if info.Code <= last || !regexp.MustCompile(`^HM\d{4}$`).MatchString(string(info.Code)) || info.Meaning == "" || info.Remedy == "" {
			t.Errorf("%s follows %s, and says %q: %q", info.Code, last, info.Meaning, info.Remedy)
		}
		last = info.Code
		if !slices.ContainsFunc(config.CodeGroups, func(g config.CodeGroup) bool { return strings.HasPrefix(string(info.Code), g.Prefix) }) {
			t.Errorf("%s is of no group", info.Code)
		}
		if file, ok := elsewhere[info.Code]; ok {
			if text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file))); err != nil || !strings.Contains(string(text), string(info.Code)) {
				t.Errorf("%s is not in %s: %v", info.Code, file, err)
			}
			continue
		}
		file := filepath.Join("testdata", "codes", string(info.Code)+".yaml")
		if _, err := os.Stat(file); err != nil {
			t.Errorf("%s: no documents provoke it: %v", info.Code, err)
			continue
		}
		problems := dir.Validate(file)
		if !slices.ContainsFunc(problems, func(p config.Problem) bool { return p.Report().Code == info.Code }) {
			t.Errorf("%s is not among %q", info.Code, problems)
		}
		if info.Code != config.InvalidDocument && config.Invalid(problems) {
			t.Errorf("%s: %q", file, problems)
		}
	}
}

// Every code that is used is a constant of mesh/config/codes.go, each of these is in the table, and no warning is without a code.
func TestEveryWarningHasACodeOfTheTable(t *testing.T) {
	files := token.NewFileSet()
	declared, err := parser.ParseFile(files, filepath.Join(root, "mesh", "config", "codes.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range declared.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			for _, value := range spec.(*ast.ValueSpec).Values {
				if code, _ := strconv.Unquote(value.(*ast.BasicLit).Value); config.CodeOf(config.Code(code)) == nil {
					t.Errorf("%s is not in the table", code)
				}
			}
		}
	}
	literal := regexp.MustCompile(`"HM\d{4}"`)
	for _, tree := range []string{"mesh", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, tree), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "codes.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					if literal.MatchString(n.Value) {
						t.Errorf("%s: %s is written as a constant of package config", files.Position(n.Pos()), n.Value)
					}
				case *ast.CompositeLit:
					if text := fields(n); slices.Contains(text, "Severity=SeverityWarning") && !slices.ContainsFunc(text, func(s string) bool { return strings.HasPrefix(s, "Code=") }) {
						t.Errorf("%s: a warning without a code", files.Position(n.Pos()))
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fields returns the fields of a composite literal as NAME=VALUE, for values that are names.
func fields(lit *ast.CompositeLit) (out []string) {
	for _, element := range lit.Elts {
		kv, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		name, value := fmt.Sprint(kv.Key), kv.Value
		if selector, ok := value.(*ast.SelectorExpr); ok {
			value = selector.Sel
		}
		out = append(out, fmt.Sprintf("%s=%v", name, value))
	}
	return out
}

var update = flag.Bool("update", false, "write docs/mesh-warnings.md from config.Codes")

func TestThePageOfTheCodesIsThatOfTheTable(t *testing.T) {
	page := filepath.Join(root, "docs", "mesh-warnings.md")
	want := codesPage()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("docs/mesh-warnings.md is not that of config.Codes (%v): run go test ./mesh/config/analysis -update", err)
	}
}

// notApplied are messages of `istioctl analyze` for which there is no code, with the reason.
var notApplied = [][2]string{
	{"IST0102, IST0103, IST0123, IST0146, IST0147, IST0148, IST0158", "they are about injection, and images of sidecars"},
	{"IST0107, IST0108, IST0125, IST0136", "a document may carry annotations of others; those of holdfast-mesh are checked"},
	{"IST0112", "a destination without a port has that of the request"},
	{"IST0116, IST0137, IST0143, IST0144", "they are about Deployments, and what runs in a Pod"},
	{"IST0118, IST0119, IST0150", "the protocol of a port without a known name is detected"},
	{"IST0122", "an expression that is not valid is an error"},
	{"IST0126", "MeshNetworks may name registries of other clusters: it is not looked at which there are"},
	{"IST0133, IST0139, IST0141, IST0142, IST0156, IST0163, IST0164, IST0165", "they are about a cluster, and the installation of Istio in it"},
	{"IST0138", "it is not looked at whether two Gateways have one certificate"},
	{"IST0140", "it is not looked at whether routes of a sidecar are meant for an Ingress, too"},
	{"IST0134", "a ServiceEntry without addresses has automatic ones, or its port on loopback (INTERCEPTION_MODE=NONE)"},
	{"IST0101 for the selector of a Gateway", "documents describe few of the proxies of gateways"},
	{"IST0151 to IST0155", "each patch of an EnvoyFilter is checked by itself ([EnvoyFilter](mesh.md#envoyfilter)), and the status names those that were left out"},
	{"IST0157", "a Telemetry without providers uses those of the mesh"},
}

// codesPage returns the page of all codes.
func codesPage() string {
	var b strings.Builder
	b.WriteString(`# Warnings of holdfast-mesh

This page is generated from ` + "`mesh/config/codes.go`: `go test ./mesh/config/analysis -update`" + `.

Each warning about documents has a code, which stays the same: ` + "`holdfast-mesh validate`, `apply`, `status`, `get`" + `, the log (` + "`code=`" + `), ` + "`/status`" + ` and
the metric ` + "`holdfast_mesh_document_warnings`" + ` (label ` + "`code`" + `) show it. A warning says that a document is used, but that something in it has no effect, or is
probably a mistake. ` + "`validate --strict`" + ` fails because of it.

## Suppress a warning

If a warning is about what is meant, say so in the document itself, with codes that are separated by commas, or ` + "`\"*\"`" + ` for all:

` + "```yaml\nmetadata:\n  annotations:\n    " + config.SuppressAnnotation + ": \"HM0201,HM0203\"\n```" + `

The annotation ` + "`" + config.IstioSuppressAnnotation + "`" + ` of Istio has the same effect, for those of Istio's codes that are in the tables below.
` + "`validate --suppress CODE[=KIND/NAMESPACE/NAME]`" + ` suppresses for one check; KIND, NAMESPACE and NAME may have ` + "`*`" + `. Errors are not suppressed. How many warnings are suppressed is always
told, and ` + "`validate --show-suppressed`" + ` shows them.

## For programs

` + "`validate -o json`" + ` prints a list of objects and nothing else; ` + "`/status`" + ` has such objects in ` + "`warnings`" + `. Fields may be added, and are not changed.

| field | meaning |
| --- | --- |
| ` + "`code`" + ` | the code; HM0001 for every error |
| ` + "`severity`" + ` | ` + "`error`" + `: the document is not used; or ` + "`warning`" + ` |
| ` + "`file`, `line`" + ` | where the document was written, or its key in etcd; a line that is not known is 0 |
| ` + "`kind`, `namespace`, `name`" + ` | the document, as far as they are known; the kind has its group, as in ` + "`networking.istio.io/VirtualService`" + ` |
| ` + "`field`" + ` | the field, as in ` + "`spec.http[0].route[0].weight`" + `; empty if there is no single one |
| ` + "`message`" + ` | what is wrong |
| ` + "`suppressed`" + ` | true for a warning that is suppressed (with ` + "`--show-suppressed`" + ` only) |
`)
	for _, group := range config.CodeGroups {
		fmt.Fprintf(&b, "\n## %s %s\n\n| code | meaning | what to do | Istio's |\n| --- | --- | --- | --- |\n", group.Prefix, group.Title)
		for _, info := range config.Codes {
			if strings.HasPrefix(string(info.Code), group.Prefix) {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", info.Code, info.Meaning, info.Remedy, strings.Join(info.Istio, ", "))
			}
		}
	}
	b.WriteString("\n## What istioctl analyze finds and holdfast-mesh does not\n\n| Istio's | why |\n| --- | --- |\n")
	for _, row := range notApplied {
		fmt.Fprintf(&b, "| %s | %s |\n", row[0], row[1])
	}
	return b.String()
}
