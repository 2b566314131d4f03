package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

// Step is one step of the story as it went.
type Step struct {
	Name string `json:"name"`
	// Seconds from the cause to the effect.
	Seconds float64 `json:"seconds"`
	// Held: it went as promised.
	Held bool `json:"held"`
	// Interrupted: it was not played to its end, so that it says nothing.
	Interrupted bool   `json:"interrupted,omitempty"`
	Detail      string `json:"detail,omitempty"`
}

// document is what -o json writes.
type document struct {
	Held  bool   `json:"held"`
	Steps []Step `json:"steps"`
}

// report tells steps as they happen.
type report struct {
	steps []Step
	json  io.Writer
	tell  io.Writer
}

func newReport(c Config) *report {
	if c.JSON {
		return &report{json: c.Out, tell: c.Tell}
	}
	return &report{tell: c.Out}
}

func (r *report) say(format string, args ...any) {
	fmt.Fprintf(r.tell, format+"\n", args...)
}

func (r *report) add(name string, took time.Duration, held bool, detail string) {
	seconds := math.Round(took.Seconds()*1000) / 1000
	r.steps = append(r.steps, Step{Name: name, Seconds: seconds, Held: held, Detail: detail})
	mark := "ok"
	if !held {
		mark = "NOT HELD"
	}
	r.say("  %-8s %8.3f s  %s", mark, seconds, detail)
}

// interrupt tells a step that somebody broke off: it neither held nor failed.
func (r *report) interrupt(name string, took time.Duration) {
	seconds := math.Round(took.Seconds()*1000) / 1000
	r.steps = append(r.steps, Step{Name: name, Seconds: seconds, Interrupted: true})
	r.say("  %-8s %8.3f s  interrupted", "-", seconds)
}

func (r *report) held() bool {
	for _, s := range r.steps {
		if !s.Held {
			return false
		}
	}
	return len(r.steps) > 0
}

// finish writes the document, once, where one was asked for.
func (r *report) finish() error {
	if r.json == nil {
		return nil
	}
	e := json.NewEncoder(r.json)
	e.SetIndent("", "  ")
	r.json = nil
	if err := e.Encode(document{Held: r.held(), Steps: r.steps}); err != nil {
		return fmt.Errorf("write the demo's times: %w", err)
	}
	return nil
}
