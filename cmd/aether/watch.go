package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
	"github.com/aether-federation/aether/registry/wire"
)

func (a *app) watchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "watch [SERVICE…]",
		Short: "Print endpoints and each change as it happens, until Ctrl-C",
		Long: `Print endpoints and each change as it happens, until Ctrl-C.

First reset, then a put for each endpoint, then synced; after that the changes.
When the registrar was away, what has changed meanwhile, and synced again. With
-o json each is one line.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := validateServices(args); err != nil {
				return err
			}
			return a.watch(cmd.Context(), args)
		},
	}
	a.outputFlag(c)
	a.completeServices(c, 0)
	return a.clientCommand(c)
}

func (a *app) watch(ctx context.Context, services []string) (err error) {
	r, err := a.client.dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	err = a.follow(ctx, r, registry.Query{Services: services})
	switch {
	case ctx.Err() != nil:
		return nil // Ctrl-C is how it ends
	case registry.KindOf(err) == registry.Unavailable:
		return &exitError{code: exitUnsure, err: a.explain(err)}
	default:
		return err
	}
}

// follow watches on after the registrar was away or cut the stream off, unless it
// was never reached or does not come back within --timeout.
func (a *app) follow(ctx context.Context, r *remote.Registry, q registry.Query) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reached, away := false, time.Time{}
	err := r.Follow(ctx, q, func(e registry.Event) error {
		reached, away = true, time.Time{}
		return a.printEvent(e)
	}, func(err error) {
		if away.IsZero() {
			away = time.Now()
		}
		if !reached || time.Since(away) > a.client.timeout {
			cancel(err)
			return
		}
		fmt.Fprintf(a.err, "aether: %v; watching again\n", err)
	})
	if cause := context.Cause(ctx); cause != nil && registry.KindOf(cause) == registry.Unavailable {
		return cause
	}
	return err
}

func (a *app) printEvent(e registry.Event) error {
	if a.output == outputJSON {
		return a.printEventJSON(e)
	}
	now := time.Now().Format("15:04:05.000")
	var err error
	switch x := e.Endpoint; e.Kind {
	case registry.Put:
		_, err = fmt.Fprintf(a.out, "%s  put     %s/%s  %s/%s  %s  %s  %s\n", now, x.Service, x.Protocol, x.Region, x.Cluster, address(x.Key), portList(x.Ports), healthText(x))
	case registry.Delete:
		_, err = fmt.Fprintf(a.out, "%s  delete  %s/%s  %s/%s  %s\n", now, x.Service, x.Protocol, x.Region, x.Cluster, address(x.Key))
	default:
		_, err = fmt.Fprintf(a.out, "%s  %s\n", now, e.Kind)
	}
	return err
}

func (a *app) printEventJSON(e registry.Event) error {
	line := struct {
		Event    string          `json:"event"`
		Endpoint json.RawMessage `json:"endpoint,omitempty"`
		Revision string          `json:"revision,omitempty"`
	}{Event: e.Kind.String(), Revision: string(e.Revision)}
	m := wire.KeyToProto(e.Endpoint.Key)
	if e.Kind == registry.Put {
		m = wire.ToProto(e.Endpoint)
	}
	if e.Kind == registry.Put || e.Kind == registry.Delete {
		var err error
		if line.Endpoint, err = messageJSON(m); err != nil {
			return err
		}
	}
	return json.NewEncoder(a.out).Encode(line)
}
