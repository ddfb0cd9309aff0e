// Package architecture checks the module against its design: its tests fail if a package does not have exactly one package
// comment, an import violates the order of the packages (design.md section 2), a protocol machine has a goroutine, a clock
// or I/O, or go.mod requires more than the product needs. It promises nothing at run time: it has no code outside of its
// tests, and nothing imports it.
//
// The sources are parsed and not built, so the rules apply to every platform and build tag at once. Only imports of
// non-test files are checked: a test may import any package. The modules below deploy and test are checked like the
// packages of the main module.
package architecture
