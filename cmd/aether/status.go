package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	sweeping "github.com/aether-federation/aether/internal/registrar/sweep"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show how a registrar, its regions and its mirrors are; exit 1 unless all are well",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.status(cmd.Context())
		},
	}
	a.outputFlag(c)
	return a.clientCommand(c)
}

func (a *app) status(ctx context.Context) error {
	return a.ask(ctx, func(ctx context.Context, r *remote.Registry) error {
		regions, err := r.Regions(ctx)
		if err != nil {
			return err
		}
		peers, err := r.Peers(ctx)
		unknown := registry.KindOf(err) == registry.NotFound // by an agent
		if err != nil && !unknown {
			return err
		}
		troubles := findTroubles(regions, peers)
		sweep, err := r.Sweep(ctx)
		if err != nil && registry.KindOf(err) != registry.NotFound {
			return err
		}
		if sweep.GetState() == sweeping.StateHeld {
			troubles = append(troubles, sentence("the sweep of the registrar's cluster is held", sweep.GetReason()))
		}
		if err := a.printStatus(regions, peers, unknown, troubles); err != nil {
			return err
		}
		if len(troubles) > 0 {
			return errors.New(strings.Join(troubles, "; "))
		}
		return nil
	})
}

func (a *app) printStatus(regions []*registryv1.Region, peers []*registryv1.Peer, unknown bool, troubles []string) error {
	if a.output == outputJSON {
		return a.statusJSON(regions, peers, troubles)
	}
	who := "registrar"
	if unknown {
		who = "agent"
	}
	fmt.Fprintf(a.out, "%s %s\n\nRegions seen here:\n", who, a.client.address())
	if err := a.regionTable(regions); err != nil {
		return err
	}
	if unknown {
		_, err := fmt.Fprintln(a.out, "\nOf mirrors to other regions a registrar knows.")
		return err
	}
	if len(peers) == 0 {
		_, err := fmt.Fprintln(a.out, "\nNo mirrors to other regions.")
		return err
	}
	fmt.Fprintln(a.out, "\nMirrors to other regions:")
	return a.peerTable(peers)
}

func (a *app) statusJSON(regions []*registryv1.Region, peers []*registryv1.Peer, troubles []string) error {
	r, err := answerJSON(&registryv1.ListRegionsResponse{Regions: regions})
	if err != nil {
		return err
	}
	p, err := answerJSON(&registryv1.ListPeersResponse{Peers: peers})
	if err != nil {
		return err
	}
	out := struct {
		Registrar string          `json:"registrar"`
		Well      bool            `json:"well"`
		Troubles  []string        `json:"troubles,omitempty"`
		Regions   json.RawMessage `json:"regions,omitempty"`
		Peers     json.RawMessage `json:"peers,omitempty"`
	}{Registrar: a.client.address(), Well: len(troubles) == 0, Troubles: troubles}
	// The answers' own documents hold one list each: the lists are what is shown.
	for _, part := range []json.RawMessage{r, p} {
		if err := json.Unmarshal(part, &out); err != nil {
			return err
		}
	}
	return a.printJSON(out)
}

// findTroubles says what is not as it should be, a sentence for each.
func findTroubles(regions []*registryv1.Region, peers []*registryv1.Peer) []string {
	var out []string
	for _, r := range regions {
		switch {
		case r.State == "own" && r.Reason != "":
			out = append(out, sentence("region "+r.Region, r.Reason))
		case r.State != "own" && r.State != "live":
			out = append(out, sentence(fmt.Sprintf("region %s is %s", r.Region, r.State), r.Reason))
		}
	}
	for _, p := range peers {
		if p.State != "live" && (p.State != "standby" || p.Leader == "") {
			out = append(out, sentence(fmt.Sprintf("the mirror to %s is %s", p.Region, p.State), p.LastError))
		}
	}
	return out
}

func sentence(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}
