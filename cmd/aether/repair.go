package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/internal/mirrors"
	"github.com/aether-federation/aether/replicator"
)

func (a *app) mirrorRepairCommand() *cobra.Command {
	var d direct
	var peer string
	var accept bool
	var wait time.Duration
	c := &cobra.Command{
		Use:   "repair",
		Short: "Have a mirror rebuilt; accept what it is held for",
		Long: `Have a mirror rebuilt: compared with its origin as a whole, and what differs
written. A mirror that is held, because most of it would be deleted, stays as it is
until that is accepted.

Without --accept it shows what would be written and deleted, and changes nothing;
that needs the peer's etcd (--peer-etcd). With --accept it asks whoever mirrors to
begin, by a key in the region's own etcd that is void after five minutes.

Exit codes: 0 begun, or nothing to do; 1 there is something to repair; 3 nobody has
taken the request up, or could not tell.`,
		Example: `  aether mirror repair --region a --peer b --etcd-endpoints 10.0.0.1:2379 --peer-etcd b=10.1.0.1:2379
  aether mirror repair --region a --peer b --etcd-endpoints 10.0.0.1:2379 --accept`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.read(cmd.Flags()); err != nil {
				return err
			}
			if peer == "" {
				return usage(errors.New("--peer is needed: the region whose copy is to be repaired"))
			}
			if accept {
				return a.acceptRepair(cmd.Context(), &d, peer, wait)
			}
			return a.showRepair(cmd.Context(), &d, peer)
		},
	}
	c.Flags().StringVar(&peer, "peer", "", "the peer whose copy is to be repaired")
	c.Flags().BoolVar(&accept, "accept", false, "do it, with the deletes that it takes")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait for it to begin")
	a.complete(c, "peer", a.peerNames)
	directCommand(c, &d, regionFlags, peerFlags)
	a.complete(c, "region", a.regionNames)
	return c
}

// showRepair shows what a repair would do.
func (a *app) showRepair(ctx context.Context, d *direct, peer string) error {
	v, err := a.verify(ctx, d, peer, 20)
	if err != nil {
		return err
	}
	if err := a.showState(ctx, d, peer); err != nil {
		return err
	}
	if err := a.printVerification(v); err != nil {
		return err
	}
	if v.Equal() {
		return nil
	}
	return fmt.Errorf("a repair would write %d keys at %s and delete %d; if that is right, repeat it with --accept", v.Count()-v.Extra, v.Peer, v.Extra)
}

func (a *app) showState(ctx context.Context, d *direct, peer string) error {
	own, err := d.dialOwn(ctx)
	if err != nil {
		return err
	}
	defer own.close()
	ctx, cancel := context.WithTimeout(ctx, etcdPatience)
	defer cancel()
	p := mirrors.Published(ctx, own.Client(), d.Region, peer)
	if p.Leader == "" {
		_, err = fmt.Fprintf(a.out, "nobody mirrors to %s: %s\n", peer, sentence(p.State, p.LastError))
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s mirrors to %s: %s\n", p.Leader, peer, sentence(p.State, p.LastError))
	return err
}

// etcdPatience bounds one request to an etcd.
const etcdPatience = 5 * time.Second

// acceptRepair asks for a repair and waits until it begins.
func (a *app) acceptRepair(ctx context.Context, d *direct, peer string, wait time.Duration) error {
	own, err := d.dialOwn(ctx)
	if err != nil {
		return err
	}
	defer own.close()
	ask, cancel := context.WithTimeout(ctx, etcdPatience)
	defer cancel()
	if err := replicator.RequestRepair(ask, own, peer); err != nil {
		return &exitError{code: exitUnsure, err: err}
	}
	ctx, cancel = context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		waits, err := replicator.RepairRequested(ctx, own, peer)
		if err == nil && !waits {
			_, err = fmt.Fprintf(a.out, "the repair at %s has begun: see 'aether mirror status'\n", peer)
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &exitError{code: exitUnsure, err: fmt.Errorf("nobody has taken the request up within %v: does a registrar of %s with peer %s run? It stands for five minutes", wait, d.Region, peer)}
		}
	}
}
