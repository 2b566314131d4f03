package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	sources "github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

func (a *app) agentCheckCommand() *cobra.Command {
	var file string
	c := config.DefaultAgent()
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what an agent with this configuration would register; exit 1 if its sources are wrong",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := agentConfig(cmd.Flags(), c, file)
			if err != nil {
				return usage(err)
			}
			return a.agentCheck(c)
		},
	}
	agentFlags(cmd.Flags(), &c)
	cmd.Flags().StringVar(&file, "config", "", "YAML file with the same keys; flags win")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) agentCheck(c config.Agent) error {
	defaults, err := agentDefaults(c)
	if err != nil {
		return usage(err)
	}
	files := sources.NewFiles(sources.FilesConfig{Paths: c.Sources, Defaults: defaults})
	found := files.Read()
	for i := range found.Declared {
		found.Declared[i].Endpoint.Node = c.Node
	}
	if err := a.printDeclared(found); err != nil {
		return err
	}
	if len(found.Problems) == 0 {
		return nil
	}
	lines := make([]string, 0, len(found.Problems))
	for _, p := range found.Problems {
		lines = append(lines, p.String())
	}
	return &exitError{code: exitFailed, err: errors.New("the sources are wrong:\n" + strings.Join(lines, "\n"))}
}

func (a *app) printDeclared(found sources.State) error {
	if a.output == outputJSON {
		list := &registryv1.ListResponse{}
		for _, d := range found.Declared {
			list.Endpoints = append(list.Endpoints, wire.ToProto(d.Endpoint))
		}
		return a.printMessage(list)
	}
	if len(found.Declared) == 0 {
		_, err := fmt.Fprintln(a.out, "Nothing would be registered.")
		return err
	}
	t := a.table("SERVICE", "PROTOCOL", "ADDRESS", "PORTS", "CHECK", "FROM")
	for _, d := range found.Declared {
		e := d.Endpoint
		t.row(e.Service, string(e.Protocol), address(e.Key), portsText(e.Ports), checkText(d), d.From)
	}
	return t.flush()
}

func portsText(ports []registry.Port) string {
	out := make([]string, 0, len(ports))
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s=%d", p.Name, p.Number))
	}
	return strings.Join(out, ",")
}

func checkText(d sources.Declared) string {
	if d.Check == nil {
		return ""
	}
	return fmt.Sprintf("%s %s%s every %v", d.Check.Kind, d.Check.Target, d.Check.Path, d.Check.Interval)
}
