package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// registerFlags are the parts of an endpoint beside its key.
type registerFlags struct {
	keyFlags
	ports, gateways     []string
	weight              uint32
	health              string
	zone, node, network string
	metadata            map[string]string
	ttl                 time.Duration
}

func (a *app) registerCommand() *cobra.Command {
	var f registerFlags
	c := &cobra.Command{
		Use:     "register SERVICE IP",
		Short:   "Register an endpoint in the registrar's region and cluster, or replace it",
		Example: "  aether register hello 10.0.0.1 --protocol http --port http=8080",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := f.endpoint(args)
			if err != nil {
				return err
			}
			return a.register(cmd.Context(), e, f.ttl)
		},
	}
	f.add(c)
	flags := c.Flags()
	flags.StringArrayVar(&f.ports, "port", nil, "port as name=number; may be repeated")
	flags.StringArrayVar(&f.gateways, "gateway", nil, "how other networks reach a port, as port-name=ip:port; may be repeated")
	flags.Uint32Var(&f.weight, "weight", 1, "relative share of traffic")
	flags.StringVar(&f.health, "health", registry.Healthy.String(), "healthy, unhealthy or draining")
	flags.StringVar(&f.zone, "zone", "", "zone that the endpoint runs in")
	flags.StringVar(&f.node, "node", "", "node that claims the endpoint; it has to report, or be registered for, again and again: the endpoints of absent nodes are swept")
	flags.StringVar(&f.network, "network", "", "address space that the IP belongs to")
	flags.StringToStringVar(&f.metadata, "metadata", nil, "key=value; may be repeated")
	flags.DurationVar(&f.ttl, "ttl", 0, "the endpoint goes unless it is registered again within this time, 5s at least; 0: it stays")
	a.outputFlag(c)
	a.completeServices(c, 1)
	return a.clientCommand(c)
}

func (f *registerFlags) endpoint(args []string) (e registry.Endpoint, err error) {
	if e.Key, err = f.key(args); err != nil {
		return e, err
	}
	if e.Ports, err = parsePorts(f.ports); err != nil {
		return e, err
	}
	if e.Gateways, err = parseGateways(f.gateways); err != nil {
		return e, err
	}
	if e.Health, err = parseHealth(f.health); err != nil {
		return e, err
	}
	e.Weight, e.Zone, e.Node, e.Network, e.Metadata = f.weight, f.zone, f.node, f.network, f.metadata
	return e, nil
}

func (a *app) register(ctx context.Context, e registry.Endpoint, ttl time.Duration) error {
	return a.tell(ctx, func(ctx context.Context, r *remote.Registry) error {
		send := r.Register
		if ttl != 0 {
			send = func(ctx context.Context, endpoints []registry.Endpoint) (registry.Revision, error) {
				return r.RegisterFor(ctx, ttl, endpoints)
			}
		}
		revision, err := send(ctx, []registry.Endpoint{e})
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			return a.printMessage(&registryv1.RegisterResponse{Revision: string(revision)})
		}
		_, err = fmt.Fprintf(a.out, "registered %s/%s at %s\n", e.Service, e.Protocol, address(e.Key))
		return err
	})
}
