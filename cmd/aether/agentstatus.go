package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/internal/agent"
	"github.com/aether-federation/aether/internal/config"
)

// maxStatus is the largest status that is read.
const maxStatus = 64 << 20

func (a *app) agentStatusCommand() *cobra.Command {
	var at string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "Show how the agent of this machine is; exit 1 unless all is well",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return a.agentStatus(ctx, at)
		},
	}
	c.Flags().StringVar(&at, "agent", config.DefaultAgentHTTPAddress, "HTTP address of the agent, or unix:PATH of its socket")
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the agent")
	a.outputFlag(c)
	return c
}

func (a *app) agentStatus(ctx context.Context, at string) error {
	status, err := askAgent(ctx, at)
	if err != nil {
		return &exitError{code: exitUnsure, err: fmt.Errorf("no status from an agent at %s: %w; is it running there? Name another with --agent", at, err)}
	}
	if a.output == outputJSON {
		err = a.printJSON(status)
	} else {
		err = a.printAgentStatus(status)
	}
	if err != nil {
		return err
	}
	if troubles := agentTroubles(status); len(troubles) > 0 {
		return errors.New(strings.Join(troubles, "; "))
	}
	return nil
}

// askAgent asks the agent at an address, or at a socket, for its status.
func askAgent(ctx context.Context, at string) (agent.Status, error) {
	var status agent.Status
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if path, isSocket := strings.CutPrefix(at, "unix:"); isSocket {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", at)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/agent", nil)
	if err != nil {
		return status, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return status, errors.Unwrap(err) // without the URL, which nobody gave
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return status, fmt.Errorf("it answers with %s", answer.Status)
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, maxStatus)).Decode(&status)
	return status, err
}

func (a *app) printAgentStatus(s agent.Status) error {
	fmt.Fprintf(a.out, "node %s is %s; %s\n", s.Node, s.Phase, reportsText(s.Reports))
	if s.View.Known {
		fmt.Fprintf(a.out, "It knows the registry of region %s as it was %s ago.\n", s.View.Region, s.View.Age)
	} else {
		fmt.Fprintln(a.out, "It knows nothing of the registry yet.")
	}
	switch {
	case !s.Announcing:
		fmt.Fprintf(a.out, "It reports its presence alone: %s.\n", s.Why)
	case s.Why != "":
		fmt.Fprintln(a.out, sentence("Its probes decide nothing", s.Why)+".")
	}
	for _, p := range s.Problems {
		fmt.Fprintf(a.out, "%s: %s\n", p.Where, p.Text)
	}
	if len(s.Endpoints) == 0 {
		_, err := fmt.Fprintln(a.out, "\nIt has no endpoints.")
		return err
	}
	fmt.Fprintln(a.out)
	t := a.table("SERVICE", "PROTOCOL", "ADDRESS", "HEALTH", "PROBE", "FROM")
	for _, e := range s.Endpoints {
		t.row(e.Service, e.Protocol, strings.TrimSuffix(e.IP+"@"+e.Instance, "@"), endpointHealth(e), probeText(e.Probe), e.From)
	}
	return t.flush()
}

func reportsText(r agent.ReportStatus) string {
	since := time.Since(r.Since).Round(time.Second)
	if r.Connected {
		return fmt.Sprintf("reports to %s have come through for %v", r.Registrar, since)
	}
	return sentence(fmt.Sprintf("no report has come through for %v", since), r.Error)
}

func endpointHealth(e agent.EndpointStatus) string {
	switch {
	case e.Conflict != "":
		return "held by another"
	case e.Health == "":
		return "not known yet"
	default:
		return e.Health
	}
}

func probeText(p *agent.ProbeStatus) string {
	switch {
	case p == nil:
		return ""
	case p.At == nil:
		return p.Type + ": not asked yet"
	case p.OK:
		return p.Type + ": ok"
	default:
		return p.Type + ": " + p.Error
	}
}

// agentTroubles says what is not as it should be, a sentence for each. Endpoints
// that are ill are not the agent's trouble.
func agentTroubles(s agent.Status) []string {
	var out []string
	if !s.Reports.Connected {
		out = append(out, reportsText(s.Reports))
	}
	if s.Why != "" {
		out = append(out, s.Why)
	}
	if s.Reports.Rival != nil {
		out = append(out, fmt.Sprintf("another machine seems to be named %s: since %s the registry differs again and again from what this node reported, and each removes what the other has; give it another --node",
			s.Node, s.Reports.Rival.Format(time.RFC3339)))
	}
	if n := len(s.Problems); n > 0 {
		out = append(out, fmt.Sprintf("sources are wrong in %d places", n))
	}
	for _, e := range s.Endpoints {
		if e.Conflict != "" {
			out = append(out, e.Conflict)
		}
	}
	return out
}
