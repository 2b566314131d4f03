// Package source knows what runs on a node, from whoever can tell: files that
// people or tools write, and programs that register themselves.
//
// A source tells its full set whenever it changes, and never less than it is sure
// of: what cannot be read leaves the last valid state in place and says where it
// is wrong. Only a set that says so is empty on purpose.
package source

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/registry"
)

// Declared is one endpoint that a source names.
type Declared struct {
	// Endpoint is valid but for its Origin and Node, which are empty: the registrar
	// and the agent know them.
	Endpoint registry.Endpoint
	// Check finds out its health; nil: it is as Endpoint says.
	Check *probe.Check
	// From is where it is declared, for people: a file with a line, or the local API.
	From string
}

// Problem is something in a source that is wrong.
type Problem struct {
	// Where is a file, with a line if there is one, or another source.
	Where string
	Text  string
}

// String is what a compiler would print.
func (p Problem) String() string { return p.Where + ": " + p.Text }

// State is all that a source has.
type State struct {
	// Known: Declared is all of it. Until a source knows, the node must not report.
	Known bool
	// Declared endpoints, in order; no key is twice. They are shared: read only.
	Declared []Declared
	// Problems keep parts of the source from being up to date.
	Problems []Problem
}

// Source tells what it has.
type Source interface {
	// Run calls tell, from one goroutine, with the state at first and after each
	// change, until ctx ends, and returns nil then.
	Run(ctx context.Context, tell func(State)) error
}

// Merge returns what several sources have together. It is known once each is. Where
// two name one key the first stands, and the other is a problem.
func Merge(states ...State) State {
	out := State{Known: true}
	from := map[registry.Key]string{}
	for _, s := range states {
		out.Known = out.Known && s.Known
		out.Problems = append(out.Problems, s.Problems...)
		for _, d := range s.Declared {
			if first, taken := from[d.Endpoint.Key]; taken {
				out.Problems = append(out.Problems, Problem{Where: d.From, Text: takenBy(d.Endpoint.Key, first)})
				continue
			}
			from[d.Endpoint.Key] = d.From
			out.Declared = append(out.Declared, d)
		}
	}
	return out
}

func takenBy(k registry.Key, first string) string {
	return fmt.Sprintf("%s is declared at %s already, and that stands: remove one", Name(k), first)
}

// Name is a key for people, without the origin that a node does not know.
func Name(k registry.Key) string {
	name := fmt.Sprintf("%s/%s at %s", k.Service, k.Protocol, k.IP)
	if k.Instance != "" {
		name += "@" + k.Instance
	}
	return name
}

// Defaults are what endpoints have that do not say otherwise.
type Defaults struct {
	// IP of the node; the zero Addr: each endpoint must name its own.
	IP            netip.Addr
	Zone, Network string
}

// anywhere stands in for the origin where an endpoint is validated: the registrar
// fills in its own.
var anywhere = registry.Origin{Region: "region", Cluster: "cluster"}

// Check returns an Invalid error unless e, whose origin must be empty, may be
// declared; and otherwise e in the one form in which it is reported.
func Check(e registry.Endpoint) (registry.Endpoint, error) {
	if e.Origin != (registry.Origin{}) {
		return e, registry.Invalidf("region", "region and cluster are those of the registrar that the agent reports to: leave them out")
	}
	prepared, err := e.Prepare(anywhere)
	prepared.Origin = registry.Origin{}
	return prepared, err
}
