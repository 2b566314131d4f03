package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) xdsCommand() *cobra.Command {
	c := group("xds", "Look at what gRPC clients and Envoy get: bootstrap, status, show")
	c.AddCommand(a.xdsBootstrapCommand(), a.xdsStatusCommand(), a.xdsShowCommand())
	return c
}

func (a *app) xdsBootstrapCommand() *cobra.Command {
	var b xds.Bootstrap
	var network string
	var file string
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Write the bootstrap file of a gRPC client",
		Long: `Write the bootstrap file of a gRPC client, which then finds services by the target
xds:///<service>[:<port name>]:

  aether xds bootstrap --region a --zone a1 --file bootstrap.json
  GRPC_XDS_BOOTSTRAP=bootstrap.json my-client

No registrar is asked. --registrar may name several, separated by commas; the file
has them in that order. Files for TLS are named in it, not copied into it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("network") {
				b.Network = &network
			}
			return a.xdsBootstrap(b, file)
		},
	}
	f := c.Flags()
	f.StringVar(&b.Node, "node", "", "the client's name in the registrar's status (default: this host's name)")
	f.StringVar(&b.Region, "region", "", "the client's region (default: the registrar's)")
	f.StringVar(&b.Zone, "zone", "", "the client's zone")
	f.StringVar(&network, "network", "", "address space of the client (default: the registrar's --network)")
	f.StringVar(&file, "file", "", "where to write it (default: standard output)")
	return a.clientCommand(c)
}

func (a *app) xdsBootstrap(b xds.Bootstrap, file string) error {
	for address := range strings.SplitSeq(a.client.address(), ",") {
		if err := config.CheckRegistrar(address); err != nil {
			return usage(err)
		}
		b.Servers = append(b.Servers, address)
	}
	if (a.client.cert == "") != (a.client.key == "") {
		return usage(errKeyPair)
	}
	b.TLS, b.CA, b.Cert, b.Key = a.client.secure(), a.client.ca, a.client.cert, a.client.key
	if b.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find this host's name: %w; give --node", err)
		}
		b.Node = host
	}
	text, err := b.JSON()
	if err != nil {
		return usage(err)
	}
	if file == "" {
		_, err := a.out.Write(text)
		return err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("write bootstrap: %w", err)
	}
	return nil
}

func (a *app) xdsStatusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the clients of a registrar's xDS, and what they took and refused; exit 1 if any refused",
		Long: `Show the clients that are connected to a registrar by xDS: what each was sent and
acknowledged, what it waits for, what it refused and why, and which names it asks
for that mean nothing. A registrar knows its own clients alone: ask each.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.xdsStatus(cmd.Context()) },
	}
	a.outputFlag(c)
	return a.clientCommand(c)
}

func (a *app) xdsStatus(ctx context.Context) error {
	var clients []xds.Status
	err := a.ask(ctx, func(ctx context.Context, r *remote.Registry) (err error) {
		clients, err = xds.Inspector{Conn: r.Conn()}.Status(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if a.output == outputJSON {
		err = a.printJSON(struct {
			Clients []xds.Status `json:"clients"`
		}{clients})
	} else {
		err = a.xdsStatusTable(clients)
	}
	if err != nil {
		return err
	}
	return troubled(clients)
}

// troubled is an error if a client refused something.
func troubled(clients []xds.Status) error {
	var names []string
	for _, c := range clients {
		if c.Count(xds.Refused) > 0 {
			names = append(names, c.Node)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("refused by %s: they use what they took before", strings.Join(names, ", "))
}

func (a *app) xdsStatusTable(clients []xds.Status) error {
	t := a.table("NODE", "FROM", "REGION", "ZONE", "NETWORK", "ACKNOWLEDGED", "WAITING", "MISSING", "REFUSED", "AGENT")
	for _, c := range clients {
		t.row(c.Node, c.From, c.Region, c.Zone, c.Network, strconv.Itoa(c.Count(xds.Acknowledged)), strconv.Itoa(c.Count(xds.Waiting)),
			strconv.Itoa(c.Count(xds.Missing)), strconv.Itoa(c.Count(xds.Refused)), c.Agent)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return a.xdsErrors(clients)
}

// xdsErrors are the resources that a client did not take, or that do not exist.
func (a *app) xdsErrors(clients []xds.Status) error {
	for _, c := range clients {
		for _, r := range c.Resources {
			if r.Error == "" {
				continue
			}
			if _, err := fmt.Fprintf(a.out, "%s: %s %s %s: %s\n", c.Node, r.Type, r.Name, r.State, r.Error); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *app) xdsShowCommand() *cobra.Command {
	var as xds.Client
	c := &cobra.Command{
		Use:   "show SERVICE[:PORT]",
		Short: "Show where a client in a region and zone sends its traffic",
		Long: `Show where a client in a region and zone sends its traffic: the assignment that it
gets from the registrar. Priority 0 is used while anything in it can be; the share
is that of the locality among those of its priority.`,
		Example: "  aether xds show api.shop:grpc --as-region a --as-zone a1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := xds.ParseName(args[0]); err != nil {
				return usage(err)
			}
			return a.xdsShow(cmd.Context(), args[0], as)
		},
	}
	f := c.Flags()
	f.StringVar(&as.Region, "as-region", "", "region of the client (default: the registrar's)")
	f.StringVar(&as.Zone, "as-zone", "", "zone of the client")
	f.StringVar(&as.Network, "as-network", "", "address space of the client (default: the registrar's --network)")
	f.BoolVar(&as.Spreads, "as-envoy", false, "as Envoy, which spreads load over priorities itself")
	a.outputFlag(c)
	a.completeServices(c, 1)
	a.complete(c, "as-region", a.regionNames)
	return a.clientCommand(c)
}

func (a *app) xdsShow(ctx context.Context, name string, as xds.Client) error {
	return a.ask(ctx, func(ctx context.Context, r *remote.Registry) error {
		shown, err := xds.Inspector{Conn: r.Conn()}.Show(ctx, name, as)
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			return a.printJSON(shown)
		}
		return a.xdsShareTable(shown)
	})
}

func (a *app) xdsShareTable(shown xds.Shown) error {
	t := a.table("PRIORITY", "REGION", "ZONE", "SHARE", "ADDRESS", "HEALTH", "WEIGHT")
	for _, s := range shown.Localities {
		for _, e := range s.Endpoints {
			t.row(number(s.Priority), s.Region, s.Zone, fmt.Sprintf("%.4g%%", s.Percent),
				net.JoinHostPort(e.Address, number(e.Port)), e.Health, number(e.Weight))
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	if shown.LeftOut == 0 {
		return nil
	}
	_, err := fmt.Fprintf(a.out, "%d left out: in another network, with no gateway to it\n", shown.LeftOut)
	return err
}
