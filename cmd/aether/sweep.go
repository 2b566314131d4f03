package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/registrar/sweep"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) sweepCommand() *cobra.Command {
	var dry bool
	var accept uint32
	c := &cobra.Command{
		Use:   "sweep --dry-run | --accept N",
		Short: "Show which endpoints the sweep of the registrar's cluster would remove, and why",
		Long: `Show which endpoints the sweep of the registrar's cluster would remove, and why.

A registrar of the cluster, elected, removes the endpoints of nodes that are
absent for longer than --sweep-grace. States: sweeping; watching (another
registrar of the cluster sweeps); unproven (who is absent is not known, so nothing
is removed); held (too many would go at once: nothing is removed until somebody
has looked). Exit code 1: held.

When it is held and the nodes are really gone, --accept N lets what is due go, once:
N is the number that --dry-run calls due. If more are due by then, nothing goes.`,
		Example: `  aether sweep --dry-run
  aether sweep --accept 250`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dry && accept > 0:
				return usage(errors.New("--dry-run and --accept exclude each other: give one"))
			case !dry && accept == 0:
				return usage(errors.New("the registrars sweep by themselves: give --dry-run to see what would go, or --accept with how many that may be"))
			case dry:
				return a.sweep(cmd.Context())
			default:
				return a.acceptSweep(cmd.Context(), accept)
			}
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "show, and remove nothing")
	c.Flags().Uint32Var(&accept, "accept", 0, "let at most this many endpoints, which are due, pass the brake; takes an admin")
	a.outputFlag(c)
	return a.clientCommand(c)
}

func (a *app) sweep(ctx context.Context) error {
	var answer *registryv1.SweepResponse
	err := a.ask(ctx, func(ctx context.Context, r *remote.Registry) (err error) {
		answer, err = r.Sweep(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if a.output == outputJSON {
		err = a.printMessage(answer)
	} else {
		err = a.sweepTable(answer)
	}
	switch {
	case err != nil:
		return err
	case answer.GetState() == sweep.StateHeld:
		return fmt.Errorf("the sweep is held: %s", answer.GetReason())
	case answer.GetState() == sweep.StateUnproven:
		return &exitError{code: exitUnsure, err: fmt.Errorf("who is absent is not known: %s", answer.GetReason())}
	}
	return nil
}

func (a *app) acceptSweep(ctx context.Context, most uint32) error {
	return a.tell(ctx, func(ctx context.Context, r *remote.Registry) error {
		answer, err := r.AcceptSweep(ctx, most)
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			return a.printMessage(answer)
		}
		_, err = fmt.Fprintf(a.out, "removed %d endpoints of absent nodes\n", answer.GetRemoved())
		return err
	})
}

func (a *app) sweepTable(answer *registryv1.SweepResponse) error {
	state := strings.TrimSuffix(answer.GetState()+": "+answer.GetReason(), ": ")
	if _, err := fmt.Fprintf(a.out, "%s; %d of %d endpoints have an absent node, %d are due; grace %s\n",
		state, len(answer.GetGhosts()), answer.GetEndpoints(), answer.GetDue(), short(answer.GetGrace())); err != nil {
		return err
	}
	if len(answer.GetGhosts()) == 0 {
		return nil
	}
	t := a.table("SERVICE", "PROTOCOL", "IP", "NODE", "ABSENT", "DUE", "WHY")
	for _, g := range answer.GetGhosts() {
		e, due := g.GetEndpoint(), "no"
		if g.GetDue() {
			due = "yes"
		}
		t.row(e.GetService(), e.GetProtocol(), e.GetIp(), e.GetNode(), short(g.GetAbsent()), due, g.GetReason())
	}
	return t.flush()
}
