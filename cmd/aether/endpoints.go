package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
	"github.com/aether-federation/aether/registry/wire"
)

func (a *app) endpointsCommand() *cobra.Command {
	var regions []string
	c := &cobra.Command{
		Use:   "endpoints [SERVICE…]",
		Short: "List endpoints of all regions, with the age of what is known of each region",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := validateServices(args); err != nil {
				return err
			}
			return a.endpoints(cmd.Context(), args, regions)
		},
	}
	c.Flags().StringSliceVar(&regions, "region", nil, "only endpoints of these regions")
	a.outputFlag(c)
	a.completeServices(c, 1)
	a.complete(c, "region", a.regionNames)
	return a.clientCommand(c)
}

func validateServices(names []string) error {
	for _, n := range names {
		if err := registry.ValidateService(n); err != nil {
			return usage(err)
		}
	}
	return nil
}

func (a *app) endpoints(ctx context.Context, services, regions []string) error {
	return a.ask(ctx, func(ctx context.Context, r *remote.Registry) error {
		found, err := r.Listing(ctx, registry.Query{Services: services})
		if err != nil {
			return err
		}
		answer := &registryv1.ListResponse{Revision: string(found.Revision)}
		for _, e := range found.Endpoints {
			if len(regions) > 0 && !slices.Contains(regions, e.Region) {
				continue
			}
			m := wire.ToProto(e)
			m.Age = durationpb.New(found.Age[e.Region])
			answer.Endpoints = append(answer.Endpoints, m)
		}
		if a.output == outputJSON {
			return a.printMessage(answer)
		}
		return a.endpointTable(answer.Endpoints)
	})
}

func (a *app) endpointTable(endpoints []*registryv1.Endpoint) error {
	t := a.table("SERVICE", "PROTOCOL", "IP", "PORTS", "HEALTH", "WEIGHT", "REGION", "CLUSTER", "ZONE", "NODE", "AGE")
	for _, m := range endpoints {
		e, err := wire.FromProto(m)
		if err != nil {
			return fmt.Errorf("read endpoint of the registrar: %w", err)
		}
		t.row(e.Service, string(e.Protocol), address(e.Key), portList(e.Ports), healthText(e),
			strconv.Itoa(int(max(e.Weight, 1))), e.Region, e.Cluster, e.Zone, e.Node, short(m.Age))
	}
	return t.flush()
}

func address(k registry.Key) string {
	if k.Instance == "" {
		return k.IP.String()
	}
	return k.IP.String() + "@" + k.Instance
}

func portList(ports []registry.Port) string {
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = fmt.Sprintf("%s=%d", p.Name, p.Number)
	}
	return strings.Join(out, ",")
}

// healthText is an endpoint's health, or that its region has lapsed, which makes
// its health unknown.
func healthText(e registry.Endpoint) string {
	if e.Lapsed {
		return "lapsed"
	}
	return e.Health.String()
}
