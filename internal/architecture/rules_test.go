package architecture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// siblings are the packages that only `agent` connects: each declares the interface that it needs.
var siblings = []string{"upstream", "downstream", "sds", "bootstrap"}

// onlyTheseOfOurs lists packages that may only import the named packages of the module, and their own subpackages.
var onlyTheseOfOurs = map[string][]string{
	"internal/xds": nil,
	"agent/cache":  {"internal/xds", "internal/wake"},
	"agent/store":  {"internal/xds", "internal/owndir", "internal/keyfile", "internal/userfile", "internal/redact"},
	"sds/pki":      nil,
	"sds/files":    {"internal/userfile"},
	"mesh":         {"downstream", "internal", "agent/cache", "sds/local", "sds/pki"},
}

// onlyImportedBy lists packages that only the named packages, and their own subpackages, may import.
var onlyImportedBy = map[string][]string{
	"mesh":              {"cmd/holdfast-mesh", "test"},
	"internal/injector": {"cmd/holdfast-injector", "test"},
}

// othersOnlyImportedBy lists modules of others that only the named packages, and their own subpackages, may import: they are large, and
// the agent's binary has none of them.
var othersOnlyImportedBy = map[string][]string{
	"k8s.io/client-go": {"internal/injector", "cmd/holdfast-injector"},
	"k8s.io/klog":      {"cmd/holdfast-injector"},
}

// forTests are packages that no program may contain.
var forTests = []string{"internal/xdstest", "internal/bubble", "internal/envoytest", "internal/envoytest/reading", "internal/prometheustest", "internal/manualtest", "sds/pkitest"}

// tools are programs that make the product, and are not part of it. They have modules of their own, may import what tests
// import, and nothing imports them.
var tools = []string{"deploy"}

// requiredForTests are the modules that go.mod may require although only tests import them. A test with larger dependencies
// belongs in a module of its own, below test.
var requiredForTests = []string{"go.uber.org/goleak"}

// machines are the pure state machines: those of the protocol, and those that decide when the mesh pushes.
var machines = []string{"upstream/session", "upstream/failover", "downstream/session", "mesh/push/debounce", "mesh/push/queue"}

// impure are the imports, subpackages included, that a state machine has no use for, and exceptions that are only values.
var (
	impure       = []string{"net", "os", "syscall", "sync", "context", "math/rand", "crypto/rand", "google.golang.org/grpc"}
	onlyOfValues = []string{"google.golang.org/grpc/codes", "google.golang.org/grpc/status"}
)

// docProblem returns the problem of the package comment of p, or "".
func docProblem(p *pkg) string {
	switch {
	case p.files == 0 || len(p.docs) == 1:
		return ""
	case len(p.docs) == 0:
		return p.path + ": no file has a package comment"
	default:
		return fmt.Sprintf("%s: more than one file has a package comment: %s", p.path, strings.Join(p.docs, ", "))
	}
}

// importProblems returns each import of p that violates a rule, with the rule.
func importProblems(p *pkg) []string {
	var problems []string
	for _, imported := range slices.Sorted(maps.Keys(p.imports)) {
		why := ""
		if ours, ok := strings.CutPrefix(imported, "./"); ok {
			why = againstTheOrder(p.path, ours)
		} else if imported != "." {
			why = againstPurity(p.path, imported)
		}
		if why != "" {
			problems = append(problems, fmt.Sprintf("%s (%s) imports %s: %s", p.path, strings.Join(p.imports[imported], ", "), imported, why))
		}
	}
	return problems
}

// requireProblems returns the modules that mod requires but that the product, whose packages are in pkgs, does not import.
func requireProblems(mod goMod, pkgs []*pkg) []string {
	var problems []string
	for _, required := range mod.Require {
		imports := func(p *pkg) bool { return productImports(p, required.Path) }
		if !required.Indirect && !slices.Contains(requiredForTests, required.Path) && !slices.ContainsFunc(pkgs, imports) {
			problems = append(problems, required.Path+": nothing but tests imports it")
		}
	}
	for _, tool := range mod.Tool {
		problems = append(problems, tool.Path+": a tool belongs into the go.mod of test/tools")
	}
	return problems
}

// productImports reports whether p is part of the product and imports a package of the named module.
func productImports(p *pkg, named string) bool {
	if inTree(p.path, "test") || inAnyTree(p.path, forTests) || inAnyTree(p.path, tools) {
		return false
	}
	for imported := range p.imports {
		if inTree(imported, named) {
			return true
		}
	}
	return false
}

// againstTheOrder returns why the package from may not import the package to of the same module, or "".
func againstTheOrder(from, to string) string {
	if inTree(to, "cmd") && !inTree(from, "cmd") {
		return "nothing imports cmd"
	}
	if inAnyTree(to, tools) && !inAnyTree(from, tools) {
		return "it is a tool, and not part of the product"
	}
	if inAnyTree(to, forTests) && !inAnyTree(from, forTests) && !inTree(from, "test") {
		return "it is for tests only"
	}
	for tree, allowed := range onlyTheseOfOurs {
		if inTree(from, tree) && !inTree(to, tree) && !inAnyTree(to, allowed) {
			return fmt.Sprintf("of this module %s imports only %q", tree, allowed)
		}
	}
	for tree, allowed := range onlyImportedBy {
		if inTree(to, tree) && !inTree(from, tree) && !inAnyTree(from, allowed) {
			return fmt.Sprintf("only %q import %s", allowed, tree)
		}
	}
	for _, tree := range siblings {
		if !inTree(from, tree) || inTree(to, tree) {
			continue
		}
		if inAnyTree(to, siblings) || inTree(to, "agent") {
			return fmt.Sprintf("%q import neither one another nor agent", siblings)
		}
	}
	return ""
}

// againstPurity returns why the package from may not import imported, which is not of this module, or "".
func againstPurity(from, imported string) string {
	if inAnyTree(from, machines) && inAnyTree(imported, impure) && !inAnyTree(imported, onlyOfValues) {
		return "a protocol machine has no goroutine, clock or I/O"
	}
	for tree, allowed := range othersOnlyImportedBy {
		if inTree(imported, tree) && !inAnyTree(from, allowed) {
			return fmt.Sprintf("only %q import %s", allowed, tree)
		}
	}
	return ""
}

// machineProblems returns where a protocol machine does what its caller must do.
func machineProblems(p *pkg) []string {
	if inAnyTree(p.path, machines) {
		return p.machines
	}
	return nil
}
