package config

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkRead reads a file of 1000 VirtualServices.
func BenchmarkRead(b *testing.B) {
	var text strings.Builder
	for i := range 1000 {
		text.WriteString(strings.Replace(reviews, "name: reviews", fmt.Sprint("name: reviews-", i), 1) + "---\n")
	}
	data := []byte(text.String())
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if documents, broken := Read("file.yaml", data); len(documents) != 1000 || broken != nil {
			b.Fatal(len(documents), broken)
		}
	}
}

// BenchmarkList lists a namespace of a store of 10,000 documents.
func BenchmarkList(b *testing.B) {
	x := &Index{}
	for i := range 10_000 {
		x.Put(entry(fmt.Sprint("ns", i%100), fmt.Sprint("e", i), "10.0.0.1"))
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(x.List(WorkloadEntry, "ns7")) != 100 {
			b.Fatal("the list has not 100 documents")
		}
	}
}
