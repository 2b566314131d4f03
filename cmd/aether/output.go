package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
)

const (
	outputTable = "table"
	outputJSON  = "json"
)

// outputFlag gives c the choice between people and programs.
func (a *app) outputFlag(c *cobra.Command) {
	c.Flags().VarP(&choice{value: &a.output, of: []string{outputTable, outputJSON}}, "output", "o", "table or json")
	a.output = outputTable
	completeWords(c, "output", outputTable, outputJSON)
}

// choice is a flag that takes one of several words.
type choice struct {
	value *string
	of    []string
}

func (c *choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

func (c *choice) Set(s string) error {
	for _, o := range c.of {
		if s == o {
			*c.value = s
			return nil
		}
	}
	return fmt.Errorf("want %s", strings.Join(c.of, " or "))
}

func (*choice) Type() string { return "string" }

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printMessage prints an answer as the HTTP API would.
func (a *app) printMessage(m proto.Message) error {
	b, err := answerJSON(m)
	if err != nil {
		return err
	}
	return a.printJSON(b)
}

// answerJSON has a program in mind that reads an answer: counts of zero and empty
// lists are there, as in the HTTP API. Endpoints have too many fields for that.
func answerJSON(m proto.Message) (json.RawMessage, error) {
	list, ok := m.(*registryv1.ListResponse)
	if ok && len(list.GetEndpoints()) > 0 {
		return messageJSON(m)
	}
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
}

// messageJSON leaves out what is zero.
func messageJSON(m proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}

// table prints rows under a header, aligned.
type table struct {
	w *tabwriter.Writer
}

func (a *app) table(header ...string) *table {
	t := &table{w: tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)}
	t.row(header...)
	return t
}

func (t *table) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// flush writes the table; errors of the rows come with it.
func (t *table) flush() error { return t.w.Flush() }

// short is a duration for people: a tenth of a second is enough.
func short(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return d.AsDuration().Round(100 * time.Millisecond).String()
}
