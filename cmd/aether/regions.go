package main

import (
	"context"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) regionsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "regions",
		Short: "List regions as the registrar sees them",
		Long: `List regions as the registrar sees them.

States: own; syncing (its mirror is being filled: not served, unless it was before:
then its last complete view is); live; stale (served as last known: the registrar's
etcd does not answer, or the origin's lease was removed there early); lapsed (its
mirror's leases ran out: not served, but as a last resort where that was asked for).

The own region has a reason when its etcd has not answered lately, or when nothing is
left of one of its clusters.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.regions(cmd.Context())
		},
	}
	a.outputFlag(c)
	return a.clientCommand(c)
}

func (a *app) regions(ctx context.Context) error {
	return a.ask(ctx, func(ctx context.Context, r *remote.Registry) error {
		regions, err := r.Regions(ctx)
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			return a.printMessage(&registryv1.ListRegionsResponse{Regions: regions})
		}
		return a.regionTable(regions)
	})
}

func (a *app) regionTable(regions []*registryv1.Region) error {
	t := a.table("REGION", "STATE", "ENDPOINTS", "AGE", "REVISION", "REASON")
	for _, x := range regions {
		t.row(x.Region, x.State, number(x.Endpoints), short(x.Age), x.Revision, x.Reason)
	}
	return t.flush()
}
