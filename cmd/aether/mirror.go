package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/remote"
	"github.com/aether-federation/aether/replicator"
)

func (a *app) mirrorCommand() *cobra.Command {
	c := group("mirror", "Look at mirrors to other regions: status, verify, repair")
	c.AddCommand(a.mirrorStatusCommand(), a.mirrorVerifyCommand(), a.mirrorRepairCommand())
	return c
}

// group is a command that only holds others.
func group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

func (a *app) mirrorStatusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the mirrors of a registrar's region; exit 1 unless all are live",
		Long: `Show the mirrors of a registrar's region, whichever of its registrars leads them.

States: connecting, refused, syncing, live, held (a rebuild that would delete most
of it waits to be accepted: see 'aether mirror repair'), full (the peer's etcd has
no space), stale (the own etcd does not answer), standby (nobody mirrors, unless
there is a leader).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.mirrorStatus(cmd.Context()) },
	}
	a.outputFlag(c)
	return a.clientCommand(c)
}

func (a *app) mirrorStatus(ctx context.Context) error {
	return a.ask(ctx, func(ctx context.Context, r *remote.Registry) error {
		peers, err := r.Peers(ctx)
		if err != nil {
			return err
		}
		if a.output == outputJSON {
			err = a.printMessage(&registryv1.ListPeersResponse{Peers: peers})
		} else {
			err = a.peerTable(peers)
		}
		if troubles := findTroubles(nil, peers); err == nil && len(troubles) > 0 {
			return errors.New(strings.Join(troubles, "; "))
		}
		return err
	})
}

// peerTable prints mirrors and, below, what should be seen to.
func (a *app) peerTable(peers []*registryv1.Peer) error {
	t := a.table("PEER", "STATE", "SINCE", "LAG", "PENDING", "KEYS", "LEASES", "LEADER", "LAST ERROR")
	for _, p := range peers {
		t.row(p.Region, p.State, short(p.Since), short(p.Lag), number(p.Pending), number(p.Keys), number(p.Leases), p.Leader, p.LastError)
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, p := range peers {
		for _, w := range p.Warnings {
			if _, err := fmt.Fprintf(a.out, "warning: peer %s: %s\n", p.Region, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// direct is how commands reach etcds themselves: as a registrar would.
type direct struct {
	config.Registrar
	file string
}

// directCommand gives c the flags of f, and a configuration file beneath them.
func directCommand(c *cobra.Command, d *direct, flags ...func(*pflag.FlagSet, *config.Registrar)) *cobra.Command {
	d.Registrar = config.Default()
	for _, f := range flags {
		f(c.Flags(), &d.Registrar)
	}
	c.Flags().StringVar(&d.file, "config", "", "a registrar's YAML file, for what no flag says")
	return c
}

// read is what flags and file say together.
func (d *direct) read(given *pflag.FlagSet) (err error) {
	if d.file != "" {
		if d.Registrar, err = merge(given, d.file); err != nil {
			return usage(err)
		}
	}
	return nil
}

// region checks the own region and returns the peers.
func (d *direct) region() ([]replicator.Peer, error) {
	if err := registry.ValidateRegion(d.Region); err != nil {
		return nil, usage(fmt.Errorf("--region: %w", err))
	}
	if err := d.ValidatePeers(); err != nil {
		return nil, usage(err)
	}
	peers, err := d.Peers()
	return peers, usage(err)
}

// onePeer returns the peer of that name, or the only one.
func onePeer(peers []replicator.Peer, name string) (replicator.Peer, error) {
	if name == "" && len(peers) == 1 {
		return peers[0], nil
	}
	i := slices.IndexFunc(peers, func(p replicator.Peer) bool { return p.Region == name })
	switch {
	case i >= 0:
		return peers[i], nil
	case len(peers) == 0:
		return replicator.Peer{}, usage(errors.New("name the peer with --peer-etcd region=endpoint, or --config"))
	default:
		return replicator.Peer{}, usage(fmt.Errorf("--peer %q is none of the peers given: name one of them", name))
	}
}

// source is the own etcd as a mirror's source.
type source struct {
	*etcd.Store
	client *etcd.Client
	// etcd is how it was dialled.
	etcd replicator.Peer
}

// dialOwn connects to the own etcd; it writes nothing there.
func (d *direct) dialOwn(ctx context.Context) (*source, error) {
	if len(d.EtcdEndpoints) == 0 {
		return nil, usage(errors.New("--etcd-endpoints is needed: the region's own etcd"))
	}
	tls, err := d.EtcdTLS(quiet())
	if err != nil {
		return nil, usage(err)
	}
	password, err := d.EtcdPassword(quiet())
	if err != nil {
		return nil, usage(err)
	}
	own := replicator.Peer{Region: d.Region, Endpoints: d.EtcdEndpoints, Username: d.EtcdUser}
	if tls != nil {
		own.TLS = tls()
	}
	if password != nil {
		own.Password = password()
	}
	client, err := replicator.Connect(ctx, own, etcd.DefaultDialTimeout)
	if err != nil {
		return nil, &exitError{code: exitUnsure, err: fmt.Errorf("own etcd: %w", err)}
	}
	store, err := etcd.New(etcd.Config{Client: client, Origin: registry.Origin{Region: d.Region, Cluster: d.ClusterName}})
	if err != nil {
		return nil, usage(errors.Join(err, client.Close()))
	}
	return &source{Store: store, client: client, etcd: own}, nil
}

// reach is an error, which says why where that can be told, if the etcd does not
// answer one question. That it refuses to is an answer.
func (s *source) reach(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, etcdPatience)
	defer cancel()
	if _, err := s.client.Get(asked, keyspace.StoreKey); errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("reach the etcd at %s: %w", strings.Join(s.etcd.Endpoints, ","), replicator.Diagnose(ctx, s.etcd, err))
	}
	return nil
}

func (s *source) close() { _ = s.client.Close() } // nothing is under way any more
