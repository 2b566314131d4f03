package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/replicator"
)

func (a *app) peerCommand() *cobra.Command {
	c := group("peer", "Set up and check what a region may do on its peers' etcds")
	c.AddCommand(a.peerBootstrapCommand(), a.peerCheckCommand())
	return c
}

// bootstrapFlags are what `peer bootstrap` takes besides the way to the etcd.
type bootstrapFlags struct {
	replicator.Grant
	passwordFile string
	dryRun       bool
}

func (a *app) peerBootstrapCommand() *cobra.Command {
	var d direct
	var f bootstrapFlags
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Let another region mirror to this etcd, and do no more: its role and user",
		Long: `Let another region mirror to this etcd, and do no more. It creates, where they are
not there, the store ID, a role that may write /aether/v1/regions/<origin>/ and
/aether/v1/mirrors/<origin>/ and read /aether/v1/store, and a user with that role.
It is run against the peer's etcd, as its root user, and can be repeated. It does
not turn authentication on.

With --no-password the user has none: a client certificate whose common name is the
user's name proves who it is (etcd runs with --client-cert-auth).`,
		Example: `  aether peer bootstrap --origin a --etcd-endpoints 10.1.0.1:2379 --password-file a-password
  aether peer bootstrap --origin a --no-password --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.read(cmd.Flags()); err != nil {
				return err
			}
			return a.peerBootstrap(cmd.Context(), &d, f)
		},
	}
	c.Flags().StringVar(&f.Origin, "origin", "", "the region that is to mirror to this etcd")
	c.Flags().StringVar(&f.User, "mirror-user", "", "name of its user (default: the origin's)")
	c.Flags().StringVar(&f.Role, "mirror-role", "", "name of its role (default: mirror-<origin>)")
	c.Flags().StringVar(&f.passwordFile, "password-file", "", "file with the password that its user gets")
	c.Flags().BoolVar(&f.NoPassword, "no-password", false, "its user has a client certificate instead")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the etcdctl commands that do the same, and do nothing")
	return directCommand(c, &d, etcdFlags)
}

func (a *app) peerBootstrap(ctx context.Context, d *direct, f bootstrapFlags) (err error) {
	if f.Grant, err = f.WithDefaults(); err != nil {
		return usage(err)
	}
	if (f.passwordFile == "") != f.NoPassword {
		return usage(errors.New("give the user a password with --password-file, or a client certificate and --no-password"))
	}
	if f.dryRun {
		return a.printBootstrap(d, f)
	}
	if f.passwordFile != "" {
		if f.Password, err = config.Password(f.passwordFile); err != nil {
			return usage(err)
		}
	}
	if d.EtcdUser != "" && d.EtcdPasswordFile == "" {
		return usage(errors.New("--etcd-user and --etcd-password-file go together: give both"))
	}
	peer, err := d.dialOwn(ctx)
	if err != nil {
		return err
	}
	defer peer.close()
	if err := peer.reach(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 6*etcdPatience)
	defer cancel()
	return replicator.Bootstrap(ctx, peer.Client(), f.Grant, func(s replicator.Step) {
		fmt.Fprintf(a.out, "%-8s %s\n", s.Outcome, s.Text)
	})
}

// printBootstrap prints what a person with etcdctl would do.
func (a *app) printBootstrap(d *direct, f bootstrapFlags) error {
	lines, err := f.Commands(f.passwordFile)
	if err != nil {
		return usage(err)
	}
	var environment []string
	for _, v := range []struct{ name, value string }{
		{"ENDPOINTS", strings.Join(d.EtcdEndpoints, ",")},
		{"CACERT", d.EtcdCA},
		{"CERT", d.EtcdCert},
		{"KEY", d.EtcdKey},
		{"USER", d.EtcdUser},
	} {
		if v.value != "" {
			environment = append(environment, "export ETCDCTL_"+v.name+"="+replicator.ShellWord(v.value))
		}
	}
	if d.EtcdPasswordFile != "" {
		environment = append(environment, `export ETCDCTL_PASSWORD="$(cat `+replicator.ShellWord(d.EtcdPasswordFile)+`)"`)
	}
	_, err = fmt.Fprintln(a.out, strings.Join(append(environment, lines...), "\n"))
	return err
}

func (a *app) peerCheckCommand() *cobra.Command {
	var d direct
	c := &cobra.Command{
		Use:   "check",
		Short: "Try what this region may do on its peers' etcds, and what it may not",
		Long: `Try, with the credentials of a mirror, what this region may do on its peers' etcds,
and whether it is refused what belongs to others. What is allowed is tried with a
key of its own that is removed again; what must be refused, in transactions that
could not change anything if they were not. The keys of mirrors are not touched.

Exit codes: 0 fine, 1 there is a problem, 3 could not tell. Warnings are fine.`,
		Example: "  aether peer check --region a --etcd-endpoints 10.0.0.1:2379 --peer-etcd b=10.1.0.1:2379 --peer-etcd-user b=a --peer-etcd-password-file b=b-password",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.read(cmd.Flags()); err != nil {
				return err
			}
			return a.peerCheck(cmd.Context(), &d)
		},
	}
	a.outputFlag(c)
	return directCommand(c, &d, regionFlags, peerFlags)
}

func (a *app) peerCheck(ctx context.Context, d *direct) error {
	peers, err := d.region()
	if err != nil {
		return err
	}
	if len(peers) == 0 {
		return usage(errors.New("name the peers with --peer-etcd region=endpoint, or --config"))
	}
	own := &source{}
	if len(d.EtcdEndpoints) > 0 {
		if own, err = d.dialOwn(ctx); err != nil {
			return err
		}
		defer own.close()
	}
	results := make([]replicator.CheckResult, len(peers))
	for i, p := range peers {
		results[i] = replicator.Check(ctx, d.Region, p, own.client)
	}
	replicator.CheckStores(results)
	if err := a.printChecks(results); err != nil {
		return err
	}
	return verdictOf(results)
}

func (a *app) printChecks(results []replicator.CheckResult) error {
	if a.output == outputJSON {
		return a.printJSON(struct {
			Peers []replicator.CheckResult `json:"peers"`
		}{results})
	}
	t := a.table("PEER", "RESULT", "CHECK", "DETAIL")
	for _, r := range results {
		for _, f := range r.Findings {
			t.row(r.Peer, string(f.Outcome), f.Check, f.Detail)
		}
	}
	return t.flush()
}

// verdictOf makes an exit code of what was found.
func verdictOf(results []replicator.CheckResult) error {
	var problems, unknown []string
	for _, r := range results {
		switch {
		case r.Has(replicator.OutcomeProblem):
			problems = append(problems, r.Peer)
		case r.Has(replicator.OutcomeUnknown):
			unknown = append(unknown, r.Peer)
		}
	}
	switch {
	case len(problems) > 0:
		return fmt.Errorf("there are problems with peer %s", strings.Join(problems, ", "))
	case len(unknown) > 0:
		return &exitError{code: exitUnsure, err: fmt.Errorf("could not tell of peer %s", strings.Join(unknown, ", "))}
	default:
		return nil
	}
}
