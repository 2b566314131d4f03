package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) servicesCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "services",
		Short: "List services with their endpoints by number and region",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.services(cmd.Context())
		},
	}
	a.outputFlag(c)
	return a.clientCommand(c)
}

func (a *app) services(ctx context.Context) error {
	return a.ask(ctx, func(ctx context.Context, r *remote.Registry) error {
		services, revision, err := r.Services(ctx)
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			return a.printMessage(&registryv1.ListServicesResponse{Services: services, Revision: string(revision)})
		}
		t := a.table("SERVICE", "PROTOCOLS", "ENDPOINTS", "HEALTHY", "REGIONS")
		for _, s := range services {
			t.row(s.Name, strings.Join(s.Protocols, ","), number(s.Endpoints), number(s.Healthy), strings.Join(s.Regions, ","))
		}
		return t.flush()
	})
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
