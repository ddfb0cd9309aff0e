//go:build !race

package bubble

const race = false
