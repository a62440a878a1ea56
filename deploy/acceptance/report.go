package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

// report prints each step as it happens and keeps how long it took.
type report struct {
	out   io.Writer
	order []string
	took  map[string]float64
	start time.Time
}

func newReport(out io.Writer) *report {
	return &report{out: out, took: map[string]float64{}, start: time.Now()}
}

// step runs do within limit and prints its name, its time and its failure.
func (r *report) step(ctx context.Context, name, says string, limit time.Duration, do func(context.Context) error) error {
	fmt.Fprintf(r.out, "%-22s %s … ", name, says)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	err := do(ctx)
	seconds := math.Round(time.Since(began).Seconds()*1000) / 1000
	if err != nil {
		fmt.Fprintf(r.out, "FAILED after %.1f s\n", seconds)
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(r.out, "%.1f s\n", seconds)
	r.order = append(r.order, name)
	r.took[name] = seconds
	return nil
}

// line is the one line of JSON at the end: seconds per step.
func (r *report) line(err error) string {
	summary := struct {
		OK      bool               `json:"ok"`
		Error   string             `json:"error,omitempty"`
		Steps   []string           `json:"steps"`
		Seconds map[string]float64 `json:"seconds"`
		Total   float64            `json:"total"`
	}{OK: err == nil, Steps: r.order, Seconds: r.took, Total: math.Round(time.Since(r.start).Seconds()*10) / 10}
	if err != nil {
		summary.Error = err.Error()
	}
	line, _ := json.Marshal(summary)
	return string(line)
}
