package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/internal/demo"
)

func (a *app) demoCommand() *cobra.Command {
	c := demo.Config{Regions: demo.DefaultRegions, LeaseTTL: demo.DefaultLeaseTTL, Out: a.out, Tell: a.err}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run regions on this machine, lose one and get it back",
		Long: `Run regions on this machine, lose one and get it back.

Each region is a registrar with an embedded etcd, and a small HTTP server, in
processes of their own on 127.0.0.1. A client calls the servers all the time. The
demo tells what happens, with the times that it measured, and then leaves the
regions to you until Ctrl-C.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Validate(); err != nil {
				return usage(err)
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own binary: %w", err)
			}
			c.Executable, c.JSON = exe, a.output == outputJSON
			return demo.Run(cmd.Context(), c)
		},
	}
	cmd.Flags().IntVar(&c.Regions, "regions", c.Regions, "how many regions")
	cmd.Flags().DurationVar(&c.LeaseTTL, "lease-ttl", c.LeaseTTL, "how long a dead region is served elsewhere")
	cmd.Flags().BoolVar(&c.Exit, "exit", false, "end after the story, with exit code 0 only if each step held")
	a.outputFlag(cmd)
	return cmd
}

// demoChildCommand runs another command of this binary for as long as its
// standard input stays open: the processes of a demo end with it, even when it
// is killed, on every system.
func (a *app) demoChildCommand() *cobra.Command {
	return &cobra.Command{
		Use:                demo.ChildCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			go func() {
				_, _ = io.Copy(io.Discard, a.in) // its end is all that counts
				os.Exit(exitFailed)
			}()
			child := &app{streams: a.streams}
			root := child.root()
			root.SetArgs(args)
			if err := root.ExecuteContext(cmd.Context()); err != nil {
				return &exitError{code: child.code(err), err: err}
			}
			return nil
		},
	}
}

func (a *app) demoBackendCommand() *cobra.Command {
	var listen, region string
	c := &cobra.Command{
		Use:    "demo-backend",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := demo.ServeBackend(cmd.Context(), listen, region); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to serve at")
	c.Flags().StringVar(&region, "region", "", "region to name in answers")
	return c
}
