package seed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// partMagic begins the first line of a part, which goes on with the hash of the whole seed, the number of the part
// from 1, and the number of parts.
const partMagic = "holdfast seed part "

// maxParts bounds the parts of a seed.
const maxParts = 64

// Split returns a seed in parts of at most size bytes, one if it is not larger. Join is its inverse.
func Split(data []byte, size int) [][]byte {
	if len(data) <= size {
		return [][]byte{data}
	}
	sum := sha256.Sum256(data)
	head := func(i, n int) string { return fmt.Sprintf("%s%s %d %d\n", partMagic, hex.EncodeToString(sum[:]), i, n) }
	room := size - len(head(maxParts, maxParts))
	n := (len(data) + room - 1) / room
	parts := make([][]byte, 0, n)
	for i := range n {
		piece := data[i*room : min((i+1)*room, len(data))]
		parts = append(parts, append([]byte(head(i+1, n)), piece...))
	}
	return parts
}

// Join returns the seed of which files, in any order, are the parts, or that one of them is. Other files, such as
// parts that were left over from a larger seed, are ignored.
func Join(files [][]byte) ([]byte, error) {
	type set struct {
		pieces [][]byte
		have   int
	}
	sets := make(map[string]*set)
	for _, f := range files {
		rest, is := bytes.CutPrefix(f, []byte(partMagic))
		if !is {
			if bytes.HasPrefix(f, []byte(magic)) {
				return f, nil
			}
			continue
		}
		line, piece, _ := bytes.Cut(rest, []byte("\n"))
		var sum string
		var i, n int
		if _, err := fmt.Sscanf(string(line[:min(len(line), 200)]), "%64s %d %d", &sum, &i, &n); err != nil || n < 1 || n > maxParts || i < 1 || i > n {
			continue
		}
		of := sets[fmt.Sprint(sum, n)]
		if of == nil {
			of = &set{pieces: make([][]byte, n)}
			sets[fmt.Sprint(sum, n)] = of
		}
		if of.pieces[i-1] == nil {
			of.have++
		}
		of.pieces[i-1] = piece
	}
	var lacking []string
	for name, of := range sets {
		if of.have < len(of.pieces) {
			lacking = append(lacking, fmt.Sprintf("%d of %d parts of one", of.have, len(of.pieces)))
			continue
		}
		whole := bytes.Join(of.pieces, nil)
		sum := sha256.Sum256(whole)
		if strings.HasPrefix(name, hex.EncodeToString(sum[:])) {
			return whole, nil
		}
		lacking = append(lacking, "one whose parts are damaged")
	}
	if len(lacking) > 0 {
		return nil, fmt.Errorf("it is not complete: there are %s", strings.Join(lacking, ", "))
	}
	return nil, errors.New("there is no seed in it: nothing was published yet")
}
