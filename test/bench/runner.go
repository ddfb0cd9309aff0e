package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// sample is a metric of one round.
type sample struct {
	metric, unit string
	value        float64
}

// A measurement is one case: what is done with one target in one round. Each round
// starts its own control plane, process and clients.
type measurement struct {
	name string
	// rounds is how many are enough, 0 for as many as there are.
	rounds int
	// on says which targets it makes sense for; nil: all.
	on func(t target) bool
	// versus is the case whose figures of direct, pipe and relay these compare with, where
	// those targets cannot do what this one asks for.
	versus string
	run    func(ctx context.Context, p *plan, t target) ([]sample, error)
	// inTurns, if it is set, is called instead of run, once for all targets: it measures each of them in each of a
	// number of rounds, and hands what it has measured to add.
	inTurns func(ctx context.Context, p *plan, of []target, rounds int, add func(target, []sample)) error
}

func agents(t target) bool     { return t.agent }
func isHoldfast(t target) bool { return t.admin }
func processes(t target) bool  { return t.argv != nil }

// runner measures, and says on progress how it goes.
type runner struct {
	plan     *plan
	targets  []target
	progress io.Writer
	machine  machine
}

// run measures the cases one after another and the targets of each in turns, so
// that what else happens on the machine meets all of them. What fails is left out of
// the results and returned as an error.
func (r *runner) run(ctx context.Context, cases []measurement) ([]result, error) {
	var results []result
	var failures []error
	for _, c := range cases {
		begun := time.Now()
		got, err := r.measure(ctx, c)
		results = append(results, got...)
		if err != nil {
			failures = append(failures, err)
			fmt.Fprintf(r.progress, "FAILED %v\n", err)
		}
		fmt.Fprintf(r.progress, "%-32s %6.1f s\n", c.name, time.Since(begun).Seconds())
		if ctx.Err() != nil {
			break
		}
	}
	compare(results)
	return results, errors.Join(failures...)
}

// series is the values of one metric of one target, over the rounds.
type series struct {
	unit   string
	values []float64
}

func (r *runner) measure(ctx context.Context, c measurement) ([]result, error) {
	rounds := r.plan.rounds
	if c.rounds > 0 {
		rounds = min(rounds, c.rounds)
	}
	var failures []error
	failed := make(map[string]bool)
	values := make(map[string]map[string]*series)
	var metrics []string // in the order in which they appeared
	add := func(t target, samples []sample) {
		if values[t.name] == nil {
			values[t.name] = make(map[string]*series)
		}
		for _, s := range samples {
			if values[t.name][s.metric] == nil {
				values[t.name][s.metric] = &series{unit: s.unit}
			}
			of := values[t.name][s.metric]
			of.values = append(of.values, s.value)
			if !slices.Contains(metrics, s.metric) {
				metrics = append(metrics, s.metric)
			}
		}
	}
	if c.inTurns != nil {
		ctx, cancel := context.WithTimeout(ctx, r.plan.limit*time.Duration(rounds*len(r.targets)))
		defer cancel()
		of := slices.Clone(r.targets)
		for i := range of {
			of[i].profile.name = c.name
		}
		if err := c.inTurns(ctx, r.plan, of, rounds, add); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		rounds = 0
	}
	for round := range rounds {
		for _, t := range r.targets {
			if failed[t.name] || c.on != nil && !c.on(t) {
				continue
			}
			t.profile.name = fmt.Sprintf("%s-%d", c.name, round+1)
			samples, err := r.once(ctx, c, t)
			if err != nil {
				failed[t.name] = true
				failures = append(failures, fmt.Errorf("%s, %s: %w", c.name, t.name, err))
				continue
			}
			add(t, samples)
		}
	}
	var results []result
	for _, m := range metrics {
		for _, t := range r.targets {
			if s := values[t.name][m]; s != nil && !failed[t.name] {
				results = append(results, result{Case: c.name, Metric: m, Target: t.name, Unit: s.unit, Versus: c.versus,
					summary: summarize(s.values), Machine: r.machine})
			}
		}
	}
	return results, errors.Join(failures...)
}

func (r *runner) once(ctx context.Context, c measurement, t target) ([]sample, error) {
	ctx, cancel := context.WithTimeout(ctx, r.plan.limit)
	defer cancel()
	return c.run(ctx, r.plan, t)
}
