package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/replicator"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (a *app) mirrorVerifyCommand() *cobra.Command {
	var d direct
	var peer string
	var show int
	c := &cobra.Command{
		Use:   "verify",
		Short: "Compare a mirror with its origin, key by key; exit 1 if they differ",
		Long: `Compare a mirror with its origin: keys, values, and whether each key is on a live
lease of the mirror. It reads both etcds and writes neither. Changes may go on: a
key counts if it differs three times, two seconds apart.

Exit codes: 0 equal, 1 they differ, 3 could not tell, because one side did not
answer or refused.`,
		Example: "  aether mirror verify --region a --etcd-endpoints 10.0.0.1:2379 --peer-etcd b=10.1.0.1:2379",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.read(cmd.Flags()); err != nil {
				return err
			}
			return a.mirrorVerify(cmd.Context(), &d, peer, show)
		},
	}
	c.Flags().StringVar(&peer, "peer", "", "which of several peers")
	c.Flags().IntVar(&show, "show", 20, "how many differences to list")
	a.outputFlag(c)
	a.complete(c, "peer", a.peerNames)
	directCommand(c, &d, regionFlags, peerFlags)
	a.complete(c, "region", a.regionNames)
	return c
}

func (a *app) mirrorVerify(ctx context.Context, d *direct, name string, show int) error {
	v, err := a.verify(ctx, d, name, show)
	if err != nil {
		return err
	}
	if err := a.printVerification(v); err != nil {
		return err
	}
	if !v.Equal() {
		return fmt.Errorf("the mirror of %s at %s differs in %d keys", v.Origin, v.Peer, v.Count())
	}
	return nil
}

func (a *app) verify(ctx context.Context, d *direct, name string, show int) (replicator.Verification, error) {
	var none replicator.Verification
	peers, err := d.region()
	if err != nil {
		return none, err
	}
	peer, err := onePeer(peers, name)
	if err != nil {
		return none, err
	}
	own, err := d.dialOwn(ctx)
	if err != nil {
		return none, err
	}
	defer own.close()
	if show <= 0 {
		show = -1
	}
	v, err := replicator.Verify(ctx, own, peer, replicator.VerifyOptions{MaxDifferences: show, Progress: a.progress()})
	if err != nil {
		return v, &exitError{code: exitUnsure, err: fmt.Errorf("compare with peer %s: %w", peer.Region, err)}
	}
	return v, nil
}

// progress tells on standard error how far a long comparison is.
func (a *app) progress() func(done, total int) {
	last := time.Now()
	return func(done, total int) {
		if time.Since(last) < 2*time.Second {
			return
		}
		last = time.Now()
		fmt.Fprintf(a.err, "compared %d of %d keys\n", done, total)
	}
}

func (a *app) printVerification(v replicator.Verification) error {
	if a.output == outputJSON {
		return a.printJSON(struct {
			Equal bool `json:"equal"`
			replicator.Verification
		}{v.Equal(), v})
	}
	whole := "says that it is complete"
	if !v.Complete {
		whole = "does not say that it is complete"
	}
	_, err := fmt.Fprintf(a.out, "%s has %d keys; its mirror at %s has %d, on %d leases, and %s\n", v.Origin, v.Keys, v.Peer, v.PeerKeys, v.Leases, whole)
	if v.Equal() {
		_, again := fmt.Fprintln(a.out, "equal")
		return errors.Join(err, again)
	}
	fmt.Fprintf(a.out, "%d missing, %d extra, %d with another value, %d on a wrong lease\n\n", v.Missing, v.Extra, v.Value, v.Lease)
	return errors.Join(err, a.printDifferences(v))
}

func (a *app) printDifferences(v replicator.Verification) error {
	t := a.table("DIFFERENCE", "KEY", "DETAIL")
	for _, d := range v.Differences {
		t.row(string(d.Kind), d.Key, d.Detail)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if more := v.Count() - len(v.Differences); more > 0 {
		_, err := fmt.Fprintf(a.out, "and %d more\n", more)
		return err
	}
	return nil
}
