package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/aether-federation/aether/internal/agent"
	"github.com/aether-federation/aether/internal/agent/catalog"
	"github.com/aether-federation/aether/internal/agent/dns"
	sources "github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/internal/agent/state"
	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/registry/remote"
)

func (a *app) agentCommand() *cobra.Command {
	var file string
	c := config.DefaultAgent()
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run an agent: register what runs on this machine, as long as it is well",
		Long: `Run an agent: register what runs on this machine, as long as it is well.

What runs here stands in YAML files (--sources), or programs register themselves
with the agent. Checks find out whether it is well.

SIGTERM drains all of it for --drain-grace or until --stop-hook returns, and
deregisters it; a second one drains no longer. SIGHUP stops the agent and leaves
everything registered, for one that is started again at once.`,
		Example: `  aether agent --sources /etc/aether/services --registrar 10.0.0.5:8443
  aether agent check --config /etc/aether/agent.yaml
  aether agent status`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := agentConfig(cmd.Flags(), c, file)
			if err != nil {
				return usage(err)
			}
			return a.runAgent(cmd.Context(), c)
		},
	}
	agentFlags(cmd.Flags(), &c)
	cmd.Flags().StringVar(&file, "config", "", "YAML file with the same keys; flags win")
	cmd.AddCommand(a.agentCheckCommand(), a.agentStatusCommand())
	return cmd
}

// agentConfig returns what flags, a file and this machine's name say together.
func agentConfig(given *pflag.FlagSet, c config.Agent, file string) (config.Agent, error) {
	var err error
	if file != "" {
		if c, err = mergeFlags(given, file, config.LoadAgent, agentFlags); err != nil {
			return c, err
		}
	}
	if c.Node == "" {
		if c.Node, err = os.Hostname(); err != nil {
			return c, fmt.Errorf("find the name of this machine, give it with --node: %w", err)
		}
	}
	return c, c.Validate()
}

func (a *app) runAgent(ctx context.Context, c config.Agent) (err error) {
	level, err := c.Level()
	if err != nil {
		return err
	}
	log := a.logger(level, c.LogFormat)
	registrar, err := dialRegistrars(c, log)
	if err != nil {
		return usage(err)
	}
	defer func() { err = errors.Join(err, registrar.Close()) }()
	dir, err := state.Open(c.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	ctx, signals := takeSignals(ctx, c.KeepOnExit)
	defer signals.stop()
	defaults, err := agentDefaults(c)
	if err != nil {
		return usage(err)
	}
	listeners, err := agentListeners(c)
	if err != nil {
		return errors.Join(err, listeners.Close())
	}
	all, err := agent.New(agent.Config{
		Node: agent.NodeConfig{
			Name: c.Node, Registrar: registrar, Files: c.Sources, Defaults: defaults, State: dir,
			Leave: agent.Leave{
				Grace: c.DrainGrace, Hook: c.StopHook, Output: a.err, Keep: signals.keep.Load, Hurry: signals.hurry,
			},
		},
		Catalog: catalog.Config{Registrar: registrar, Services: c.WatchServices, File: viewFile(c)},
		Listen:  listeners, RegionOrder: c.RegionOrder, Log: log, Metrics: processMetrics(),
	})
	if err != nil {
		return errors.Join(err, listeners.Close())
	}
	log.Info("running", "version", versionText(), "node", c.Node, "registrar", c.Registrar)
	return all.Run(ctx)
}

// viewFile keeps the last known view; none where nothing is remembered.
func viewFile(c config.Agent) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(c.StateDir, "view")
}

// agentListeners opens what the agent is reached at. On an error those that are
// open are returned too.
func agentListeners(c config.Agent) (agent.Listeners, error) {
	var l agent.Listeners
	var err error
	for _, one := range []struct {
		flag, address string
		listen        func(string) (net.Listener, error)
		add           *[]net.Listener
	}{
		{"grpc-address", c.GRPCAddress, listenTCP, &l.GRPC},
		{"http-address", c.HTTPAddress, listenTCP, &l.HTTP},
		{"socket", c.Socket, listenSocket, &l.Both},
	} {
		if one.address == "" {
			continue
		}
		opened, err := one.listen(one.address)
		if err != nil {
			return l, fmt.Errorf("listen at --%s: %w", one.flag, err)
		}
		*one.add = append(*one.add, opened)
	}
	if c.DNSAddress != "" {
		if l.UDP, l.TCP, err = dns.Listen(c.DNSAddress); err != nil {
			return l, fmt.Errorf("listen at --dns-address: %w", err)
		}
	}
	return l, nil
}

func listenTCP(address string) (net.Listener, error) { return net.Listen("tcp", address) }

// socketMode lets the agent's user and group reach its socket.
const socketMode = 0o660

// maxSocketPath is what a socket's address holds on Linux, but for the zero at its end.
const maxSocketPath = 107

// listenSocket listens at a path, in place of a socket that nobody serves any more.
func listenSocket(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path is %d bytes long, and a socket's has %d at most: %s", len(path), maxSocketPath, path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("another process serves %s", path), c.Close())
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there already, and is no socket: remove it, or use another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func agentDefaults(c config.Agent) (sources.Defaults, error) {
	ip, err := c.Address()
	return sources.Defaults{IP: ip, Zone: c.Zone, Network: c.Network}, err
}

func dialRegistrars(c config.Agent, log *slog.Logger) (*remote.Registry, error) {
	t, err := c.RegistrarTLS(log)
	if err != nil {
		return nil, err
	}
	options := []remote.Option{remote.WithFailover()}
	if t != nil {
		options = append(options, remote.WithTLSNow(t))
	}
	return remote.New(strings.Join(c.Registrar, ","), options...)
}

// leaving is what signals say about how the agent stops.
type leaving struct {
	// keep: everything stays registered.
	keep atomic.Bool
	// hurry is closed when the draining is to end.
	hurry chan struct{}
	stop  func()
}

// takeSignals returns a context that ends with the first signal to stop.
func takeSignals(ctx context.Context, keep bool) (context.Context, *leaving) {
	ctx, cancel := context.WithCancel(ctx)
	l := &leaving{hurry: make(chan struct{})}
	l.keep.Store(keep)
	got, ended, done := make(chan os.Signal, 4), make(chan struct{}), make(chan struct{})
	signal.Notify(got, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	l.stop = func() {
		signal.Stop(got)
		close(ended)
		<-done
		cancel()
	}
	go func() {
		defer close(done)
		l.follow(got, ended, cancel)
	}()
	return ctx, l
}

// follow stops the agent at the first signal, and its draining at the second.
func (l *leaving) follow(got <-chan os.Signal, ended <-chan struct{}, cancel context.CancelFunc) {
	for n := 1; n <= 2; n++ {
		select {
		case <-ended:
			return
		case s := <-got:
			if n == 1 && s == syscall.SIGHUP {
				l.keep.Store(true)
			}
			if n == 2 {
				close(l.hurry)
			}
			cancel()
		}
	}
}
