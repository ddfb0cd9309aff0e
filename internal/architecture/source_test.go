package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/holdfast-xds/holdfast"

// pkg is a directory with Go files. Its contents are those of the non-test files.
type pkg struct {
	path     string              // within the module; "." is its root
	files    int                 // 0: only tests
	docs     []string            // the files with a package comment
	imports  map[string][]string // import path → the files that import it; those of this module begin with "./"
	machines []string            // where it starts goroutines, uses channels or reads the clock
}

// goMod is the output of `go mod edit -json`, as far as it is checked.
type goMod struct {
	Require []required
	Tool    []struct{ Path string }
}

type required struct {
	Path     string
	Indirect bool
}

// load parses every package below the directory root.
func load(root string) ([]*pkg, error) {
	byDir := map[string]*pkg{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if file != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		p := byDir[dir]
		if p == nil {
			p = &pkg{path: filepath.ToSlash(dir), imports: map[string][]string{}}
			byDir[dir] = p
		}
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return p.add(name, string(source))
	})
	pkgs := slices.Collect(maps.Values(byDir))
	slices.SortFunc(pkgs, func(a, b *pkg) int { return strings.Compare(a.path, b.path) })
	return pkgs, err
}

// add parses one file of the package.
func (p *pkg) add(name, source string) error {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, path.Join(p.path, name), source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p.files++
	if strings.TrimSpace(file.Doc.Text()) != "" { // Text leaves out directives
		p.docs = append(p.docs, name)
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if imported == module || strings.HasPrefix(imported, module+"/") {
			imported = "." + strings.TrimPrefix(imported, module)
		}
		p.imports[imported] = append(p.imports[imported], name)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if what := machinery(node); what != "" {
			p.machines = append(p.machines, fmt.Sprintf("%s: %s", positions.Position(node.Pos()), what))
		}
		return true
	})
	return nil
}

// clockCalls are the functions of package time that read or wait for the clock; its types and constants are only values.
var clockCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}

// machinery returns what a pure state machine must not contain, or "".
func machinery(node ast.Node) string {
	switch node := node.(type) {
	case *ast.GoStmt:
		return "starts a goroutine"
	case *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
		return "uses a channel"
	case *ast.UnaryExpr:
		if node.Op == token.ARROW {
			return "uses a channel"
		}
	case *ast.SelectorExpr:
		if x, ok := node.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockCalls, node.Sel.Name) {
			return "asks the clock: time." + node.Sel.Name
		}
	}
	return ""
}

// inTree reports whether p is root or below it; both are slash-separated paths.
func inTree(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}

func inAnyTree(p string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return inTree(p, root) })
}

// source returns a package from text, to test a rule.
func source(t *testing.T, dir string, files ...string) *pkg {
	t.Helper()
	p := &pkg{path: dir, imports: map[string][]string{}}
	for i, text := range files {
		if err := p.add(fmt.Sprintf("file%d.go", i), text); err != nil {
			t.Fatal(err)
		}
	}
	return p
}
