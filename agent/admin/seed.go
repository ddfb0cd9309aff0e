package admin

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Seeds is what an agent knows of seeds (package seed).
type Seeds interface {
	// Seed returns the file of an unsigned seed of what the agent's Envoys have accepted.
	Seed() ([]byte, error)
	// NewPod reads the seed that a new pod would be served; nil if the agent has none. With an error, the result has
	// only its place.
	NewPod(context.Context) (*NewPod, error)
}

// NewPod is the seed that a new pod would be served.
type NewPod struct {
	Place string `json:"place"`
	Role  string `json:"role,omitempty"`
	// At is the time of the seed.
	At time.Time `json:"at,omitzero"`
	// Resources counts what is in it, by short name of the type, and LeftOut, by reason, what is not.
	Resources map[string]int `json:"resources,omitempty"`
	LeftOut   map[string]int `json:"left_out,omitempty"`
	SignedBy  string         `json:"signed_by,omitempty"`
}

func (s *Server) seed(w http.ResponseWriter, _ *http.Request) {
	data, err := s.cfg.Seeds.Seed()
	if err != nil {
		text(w, http.StatusConflict, err.Error()+"\n")
		return
	}
	header(w, "application/octet-stream", http.StatusOK)
	_, _ = w.Write(data) // whoever asked may have gone
}

// Seed returns the file of an unsigned seed of what the agent's Envoys have accepted.
func (c Client) Seed(ctx context.Context) (data []byte, err error) {
	err = c.request(ctx, http.MethodGet, "/seed", nil, requestTimeout, func(resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", c.Addr, said(resp))
		}
		data, err = io.ReadAll(resp.Body)
		return err
	})
	return data, err
}

// newPodTimeout bounds the reading of the seed for a rehearsal, whose client waits for connectTimeout.
const newPodTimeout = 4 * time.Second

// newPod adds what a new pod would be served.
func (r *Rehearsal) newPod(ctx context.Context, seeds Seeds) {
	if seeds == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, newPodTimeout)
	defer cancel()
	seed, err := seeds.NewPod(ctx)
	if err != nil {
		r.lose(afterNewPod, "", "everything", err.Error())
		return
	}
	r.NewPod = seed
	if seed == nil {
		return
	}
	for _, why := range slices.Sorted(maps.Keys(seed.LeftOut)) {
		r.lose(afterNewPod, "", plural(seed.LeftOut[why], "resource"), "not in the seed: "+why)
	}
}

// newPodLine says what a new pod would be served.
func (r *Rehearsal) newPodLine() string {
	seed := r.NewPod
	switch {
	case slices.ContainsFunc(r.Losses, func(l Loss) bool { return l.After == afterNewPod }) && seed == nil:
		return "A new pod would get nothing, because its seed cannot be used: see above."
	case seed == nil:
		return "A new pod would get nothing: what is stored belongs to this one, and there is no --seed (docs/offline.md)."
	}
	var counts []string
	for _, kind := range slices.SortedFunc(maps.Keys(seed.Resources), xds.CompareShort) {
		counts = append(counts, fmt.Sprintf("%d %s", seed.Resources[kind], kind))
	}
	return fmt.Sprintf("A new pod would be served the seed %s of the role %q, from %s: %s.", seed.Place, seed.Role, ago(r.At, seed.At), strings.Join(counts, ", "))
}

// line describes a seed.
func (s *Seed) line(now time.Time) string {
	signed := ""
	if s.SignedBy != "" {
		signed = ", signed by " + s.SignedBy
	}
	return fmt.Sprintf("served from the seed of the role %q, taken %s%s, because no control plane answers and nothing was stored: %s", s.Role, ago(now, s.At), signed, plural(s.Resources, "resource"))
}
