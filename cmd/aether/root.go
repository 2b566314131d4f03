package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/registry"
)

// Exit codes, as they are documented in the help of the root command.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
	exitUnsure = 3
)

type streams struct {
	in       io.Reader
	out, err io.Writer
}

// exitError is an error that decides the exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage makes err one of wrong usage.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitUsage, err: err}
}

// app is one run of the command.
type app struct {
	streams
	client clientFlags
	output string
	// running says that a command's own work began: errors before it are about
	// how it was called.
	running bool
}

// run is main with its surroundings passed in. The first SIGINT or SIGTERM ends
// the context; a second one ends the process.
func run(ctx context.Context, args []string, s streams) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	a := &app{streams: s}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitFine
	}
	code := a.code(err)
	fmt.Fprintln(s.err, "aether:", err)
	if code == exitUsage {
		fmt.Fprintf(s.err, "Run '%s --help' for its usage.\n", cmd.CommandPath())
	}
	return code
}

func (a *app) code(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if !a.running || registry.KindOf(err) == registry.Invalid {
		return exitUsage
	}
	return exitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "aether",
		Short: "A service registry for fleets in several regions",
		Long: `A service registry for fleets in several regions.

Each region registers its endpoints in its own etcd and mirrors them to its
peers. A region that dies leaves its peers by itself.

New here? Run 'aether demo'.

Exit codes: 0 fine, 1 failed or not as it should be, 2 wrong usage, 3 could not
tell.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.Version = versionText()
	root.SetVersionTemplate(versionLine() + "\n")
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.AddCommand(
		a.registrarCommand(), a.agentCommand(), a.registerCommand(), a.unregisterCommand(), a.drainCommand(), a.sweepCommand(),
		a.statusCommand(), a.regionsCommand(), a.servicesCommand(), a.endpointsCommand(), a.watchCommand(),
		a.mirrorCommand(), a.peerCommand(), a.xdsCommand(),
		a.demoCommand(), a.demoChildCommand(), a.demoBackendCommand(), a.versionCommand(),
	)
	strictCompletion(root)
	for _, c := range root.Commands() {
		a.mark(c)
	}
	return root
}

// strictCompletion makes a shell that there are no completions for wrong usage, as
// any other word that is not known.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// mark notes when c's own work begins, or that of a command below it.
func (a *app) mark(c *cobra.Command) {
	for _, sub := range c.Commands() {
		a.mark(sub)
	}
	work := c.RunE
	if work == nil {
		return
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.running = true
		return work(cmd, args)
	}
}
