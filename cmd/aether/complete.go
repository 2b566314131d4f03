package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/registry/remote"
)

// completionPatience is how long a shell waits for a registrar's names.
const completionPatience = time.Second

// names are asked of a registrar for a shell's completion.
type names func(context.Context, *remote.Registry) ([]string, error)

// complete completes a flag with names.
func (a *app) complete(c *cobra.Command, flag string, of names) {
	completeBy(c, flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.namesNow(cmd.Context(), of), cobra.ShellCompDirectiveNoFileComp
	})
}

// completeWords completes a flag with words that are always the same.
func completeWords(c *cobra.Command, flag string, words ...string) {
	completeBy(c, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeBy panics for a flag that is not there or is completed already: a mistake
// of its caller.
func completeBy(c *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic(err)
	}
}

// completeServices completes the arguments of c, at most that many, with the names
// of services.
func (a *app) completeServices(c *cobra.Command, most int) {
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.namesNow(cmd.Context(), a.serviceNames), cobra.ShellCompDirectiveNoFileComp
	}
}

// namesNow are none where no registrar answers: a completion has nowhere to say so.
func (a *app) namesNow(ctx context.Context, of names) []string {
	r, err := a.client.dial()
	if err != nil {
		return nil
	}
	defer func() { _ = r.Close() }() // it was only asked
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	found, err := of(ctx, r)
	if err != nil {
		return nil
	}
	return found
}

func (a *app) serviceNames(ctx context.Context, r *remote.Registry) ([]string, error) {
	services, _, err := r.Services(ctx)
	out := make([]string, 0, len(services))
	for _, s := range services {
		out = append(out, s.Name)
	}
	return out, err
}

func (a *app) peerNames(ctx context.Context, r *remote.Registry) ([]string, error) {
	peers, err := r.Peers(ctx)
	out := make([]string, 0, len(peers))
	for _, p := range peers {
		out = append(out, p.Region)
	}
	return out, err
}

func (a *app) regionNames(ctx context.Context, r *remote.Registry) ([]string, error) {
	regions, err := r.Regions(ctx)
	out := make([]string, 0, len(regions))
	for _, x := range regions {
		out = append(out, x.Region)
	}
	return out, err
}
