package crew

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// callTimeout bounds a report: then the next registrar is asked.
const callTimeout = time.Second

// node is a member that runs.
type node struct {
	c Config

	mu      sync.Mutex
	changes int
	frozen  bool
	view    view
	errors  []string
}

// Run is the member c, until in ends.
func Run(ctx context.Context, c Config, in io.Reader, out io.Writer) error {
	if err := c.Validate(); err != nil {
		return err
	}
	n := &node{c: c, changes: c.Incarnation, view: view{known: map[registry.Key]registry.Endpoint{}}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.report(ctx) })
	g.Go(func() error { return n.follow(ctx) })
	g.Go(func() error {
		defer cancel()
		return n.obey(in, out)
	})
	return g.Wait()
}

// obey answers commands until in ends.
func (n *node) obey(in io.Reader, out io.Writer) error {
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() {
		state, err := n.do(lines.Text())
		if err != nil {
			return err
		}
		if err := answers.Encode(state); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read command: %w", err)
	}
	return nil
}

func (n *node) do(command string) (State, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch command {
	case Tell:
	case Freeze:
		n.frozen = true
	case Thaw:
		n.frozen = false
	default:
		return State{}, fmt.Errorf("command %q is unknown", command)
	}
	s := State{View: n.view.lines(), Synced: n.view.synced, Losses: n.view.losses, Errors: n.errors}
	n.view.losses, n.errors = nil, nil
	for _, e := range n.c.endpoints(n.changes) {
		s.Own = append(s.Own, Line(e))
	}
	slices.Sort(s.Own)
	return s, nil
}

// follow follows all services at any registrar. Losing one's registrar is what
// the tests are about and no error.
func (n *node) follow(ctx context.Context) error {
	all := manual.NewBuilderWithScheme("crew")
	var state resolver.State
	for _, r := range n.c.Registrars {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: r}}})
	}
	all.InitialState(state)
	client, err := remote.New("crew:///registrars", remote.WithDialOptions(grpc.WithResolvers(all)))
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.Follow(ctx, registry.Query{}, func(e registry.Event) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.view.take(e, time.Now())
		return nil
	}, nil)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("follow: %w", err)
}

// report reports, and changes what is reported, until ctx ends. A registrar that
// does not take a report in time is left for the next.
func (n *node) report(ctx context.Context) error {
	clients, err := connect(n.c.Registrars)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range clients {
			_ = c.Close() // the process ends
		}
	}()
	report, change := time.NewTicker(n.c.ReportEvery), time.NewTicker(n.c.ChangeEvery)
	defer report.Stop()
	defer change.Stop()
	for at := 0; ; {
		if !n.reportTo(ctx, clients[at]) {
			at = (at + 1) % len(clients)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-report.C:
		case <-change.C:
			n.change()
		}
	}
}

func connect(addresses []string) ([]*remote.Registry, error) {
	var all []*remote.Registry
	for _, a := range addresses {
		client, err := remote.New(a)
		if err != nil {
			return nil, err
		}
		all = append(all, client)
	}
	return all, nil
}

func (n *node) change() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.frozen {
		n.changes++
	}
}

// reportTo reports to one registrar and tells whether it took the report.
func (n *node) reportTo(ctx context.Context, to *remote.Registry) bool {
	n.mu.Lock()
	r := remote.Report{Node: n.c.Node(), Endpoints: n.c.endpoints(n.changes)}
	n.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reported, err := to.Report(call, r)
	switch {
	case call.Err() != nil || registry.KindOf(err) == registry.Unavailable:
		return false
	case err != nil:
		n.complain(fmt.Sprintf("report: %v", err))
		return false
	}
	for i, conflict := range reported.Conflicts {
		n.complain(fmt.Sprintf("report %s: %v", Line(r.Endpoints[i]), conflict))
	}
	return true
}

func (n *node) complain(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.errors = append(n.errors, what)
}
