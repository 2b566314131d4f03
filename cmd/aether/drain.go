package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) drainCommand() *cobra.Command {
	var f keyFlags
	var undo bool
	var node string
	c := &cobra.Command{
		Use:   "drain SERVICE IP…",
		Short: "Send nothing new to endpoints, which finish what they have",
		Long: `Send nothing new to endpoints, which finish what they have.

They are served as draining at once, and stay so until they are unregistered,
registered again, or drained with --undo. A node's report does not end it.`,
		Example: "  aether drain hello 10.0.0.1 10.0.0.2 --protocol http",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			claims := make([]registry.Claim, 0, len(args)-1)
			for _, ip := range args[1:] {
				key, err := f.key([]string{args[0], ip})
				if err != nil {
					return err
				}
				claims = append(claims, registry.Claim{Key: key, Node: node})
			}
			health := registry.Draining
			if undo {
				health = registry.Healthy
			}
			return a.setHealth(cmd.Context(), claims, health)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&undo, "undo", false, "serve them as healthy again")
	c.Flags().StringVar(&node, "node", "", "only if this node claims them")
	a.outputFlag(c)
	a.completeServices(c, 1)
	return a.clientCommand(c)
}

func (a *app) setHealth(ctx context.Context, claims []registry.Claim, health registry.Health) error {
	return a.tell(ctx, func(ctx context.Context, r *remote.Registry) error {
		revision, err := r.SetHealth(ctx, claims, health)
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			return a.printMessage(&registryv1.SetHealthResponse{Revision: string(revision)})
		}
		for _, c := range claims {
			if _, err := fmt.Fprintf(a.out, "%s/%s at %s is %s\n", c.Service, c.Protocol, address(c.Key), health); err != nil {
				return err
			}
		}
		return nil
	})
}
