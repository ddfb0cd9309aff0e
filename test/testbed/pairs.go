package testbed

import "math/rand/v2"

// Pairs returns rows with a value of each dimension, from 0 on, such that each pair of values of two dimensions is in a row and each value in
// at least three, unless possible, which gets a row, forbids it. The same seed gives the same rows.
func Pairs(seed uint64, sizes []int, possible func(row []int) bool) (rows [][]int) {
	random := rand.New(rand.NewPCG(seed, 0))
	missing := make(map[[4]int]bool) // dimension and value, twice
	for a := range sizes {
		for b := range a {
			for x := range sizes[a] {
				for y := range sizes[b] {
					missing[[4]int{a, x, b, y}] = true
				}
			}
		}
	}
	fewest := func(counts [][]int) int {
		n := len(rows)
		for _, of := range counts {
			for _, count := range of {
				n = min(n, count)
			}
		}
		return n
	}
	counts := make([][]int, len(sizes))
	for d, size := range sizes {
		counts[d] = make([]int, size)
	}
	// A row is the best of many random ones; when none of them has anything new, nothing possible is missing.
	for {
		var best []int
		most := 0
		for range 2000 {
			row := make([]int, len(sizes))
			for d, size := range sizes {
				row[d] = random.IntN(size)
			}
			if !possible(row) {
				continue
			}
			worth := 0
			for a := range row {
				for b := range a {
					if missing[[4]int{a, row[a], b, row[b]}] {
						worth += 10
					}
				}
				if counts[a][row[a]] < 3 {
					worth++
				}
			}
			if worth > most {
				best, most = row, worth
			}
		}
		if best == nil || most < 10 && fewest(counts) >= 3 {
			return rows
		}
		for a := range best {
			counts[a][best[a]]++
			for b := range a {
				delete(missing, [4]int{a, best[a], b, best[b]})
			}
		}
		rows = append(rows, best)
	}
}
