package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) unregisterCommand() *cobra.Command {
	var f keyFlags
	var node string
	c := &cobra.Command{
		Use:     "unregister SERVICE IP",
		Short:   "Remove an endpoint of the registrar's region and cluster",
		Example: "  aether unregister hello 10.0.0.1 --protocol http",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := f.key(args)
			if err != nil {
				return err
			}
			return a.unregister(cmd.Context(), registry.Claim{Key: key, Node: node})
		},
	}
	f.add(c)
	c.Flags().StringVar(&node, "node", "", "remove it only if this node, or none, claims it")
	a.outputFlag(c)
	a.completeServices(c, 1)
	return a.clientCommand(c)
}

func (a *app) unregister(ctx context.Context, claim registry.Claim) error {
	return a.tell(ctx, func(ctx context.Context, r *remote.Registry) error {
		removed, revision, err := r.Unregister(ctx, []registry.Claim{claim})
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			return a.printMessage(&registryv1.UnregisterResponse{Revision: string(revision), Removed: uint32(removed)})
		}
		what := "removed"
		if removed == 0 {
			what = "there was no"
		}
		_, err = fmt.Fprintf(a.out, "%s %s/%s at %s\n", what, claim.Service, claim.Protocol, address(claim.Key))
		return err
	})
}
