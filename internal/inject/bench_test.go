package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"go.yaml.in/yaml/v3"
)

// deployment is one object of the benchmark, with a name.
const deployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web-%[1]d
  namespace: shop
  labels: {app: web-%[1]d}
spec:
  replicas: 3 # in three zones
  selector:
    matchLabels:
      app: web-%[1]d
  template:
    metadata:
      labels:
        app: web-%[1]d
    spec:
      # The image is that of the last release.
      containers:
      - name: web
        image: registry.example/web:v1
        ports:
        - containerPort: 8080
          name: http
        env:
        - {name: LOG_LEVEL, value: info}
        resources:
          requests:
            cpu: 100m
            memory: 64Mi
`

// forms are the ways in which many objects are one text.
var forms = []struct {
	name string
	make func(n int) []byte
}{
	{"documents", func(n int) []byte {
		var text bytes.Buffer
		for i := range n {
			fmt.Fprintf(&text, "---\n"+deployment, i)
		}
		return text.Bytes()
	}},
	{"list of YAML", func(n int) []byte {
		text := bytes.NewBufferString("apiVersion: v1\nkind: List\nitems:\n")
		for i := range n {
			for j, line := range bytes.SplitAfter(fmt.Appendf(nil, deployment, i), []byte("\n")) {
				switch {
				case len(line) == 0:
				case j == 0:
					text.WriteString("- " + string(line))
				default:
					text.WriteString("  " + string(line))
				}
			}
		}
		return text.Bytes()
	}},
	{"list of JSON", func(n int) []byte { return listOfJSON(n, "    ") }},
	{"list of JSON in one line", func(n int) []byte { return listOfJSON(n, "") }},
}

func listOfJSON(n int, indent string) []byte {
	items := make([]any, n)
	for i := range items {
		if err := yaml.Unmarshal(fmt.Appendf(nil, deployment, i), &items[i]); err != nil {
			panic(err) // the text is above
		}
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	text, err := json.Marshal(list)
	if indent != "" {
		text, err = json.MarshalIndent(list, "", indent)
	}
	if err != nil {
		panic(err) // as above
	}
	return append(text, '\n')
}

// The time for an object must not depend on how many there are in the text: MB/s are the same for all sizes.
func BenchmarkInject(b *testing.B) {
	for _, form := range forms {
		for _, n := range []int{200, 2_000, 20_000} {
			b.Run(fmt.Sprintf("%s/%d", form.name, n), func(b *testing.B) {
				text := form.make(n)
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					_, results := Inject(text, goldenSettings())
					if len(results) != n || !results[n-1].Changed {
						b.Fatalf("%d results, the last %+v", len(results), results[len(results)-1])
					}
				}
			})
		}
	}
}
