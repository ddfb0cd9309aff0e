// Package architecture holds the module to its own design: its tests fail when a package does not have exactly one package
// comment, when an import runs against the order of the packages (design.md section 2), when a protocol machine has a
// goroutine, a clock or I/O, or when go.mod requires what the product does not need. It has no code outside its tests, and
// nothing imports it.
//
// Sources are parsed, not built, so the rules hold for every platform and build tag at once. Only what non-test files
// import is judged: a test may look at a neighbour. The modules below test are judged like the packages of the main one.
package architecture
