package etcd

import (
	"context"
	"log/slog"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// tendEvery is how often the members that a client uses are tried, tendTimeout
	// what one may take: far above what a member takes that is of use.
	tendEvery   = time.Second
	tendTimeout = time.Second
)

// Tend keeps c, a client of an etcd of several members, away from members that do
// not answer or see no leader, until ctx ends; it returns nil then. The client
// spreads calls over all its endpoints, and one whose connections hang would else
// let its share of them time out, until gRPC's keepalive gives the connection up
// after a quarter of a minute. A member that was left out is back as soon as it
// answers. When none answers, all are used. With one endpoint nothing is done.
func Tend(ctx context.Context, c *clientv3.Client, log *slog.Logger) error {
	all := c.Endpoints()
	if len(all) < 2 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for used := all; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if len(used) == len(all) && allAnswer(ctx, c, len(all)) {
			continue
		}
		now := Answering(ctx, c, all)
		if ctx.Err() != nil || slices.Equal(now, used) {
			continue
		}
		log.Warn("members of etcd in use have changed: others do not answer, or see no leader", "in_use", now, "of", all)
		c.SetEndpoints(now...)
		used = now
	}
}

// allAnswer makes as many reads as there are members, which the client spreads, and
// reports whether each was answered in time. It costs no new connection.
func allAnswer(ctx context.Context, c *clientv3.Client, members int) bool {
	ctx, cancel := context.WithTimeout(ctx, tendTimeout)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for range members {
		g.Go(func() error {
			_, err := c.Get(clientv3.WithRequireLeader(ctx), keyspace.StoreKey, clientv3.WithKeysOnly())
			return err
		})
	}
	return g.Wait() == nil
}

// Answering returns those of an etcd's endpoints whose member answers within a
// second and sees a leader, in their order; all of them if none does.
func Answering(ctx context.Context, c *clientv3.Client, endpoints []string) []string {
	ctx, cancel := context.WithTimeout(ctx, tendTimeout)
	defer cancel()
	answers := make([]bool, len(endpoints))
	var g errgroup.Group
	for i, endpoint := range endpoints {
		g.Go(func() error {
			is, err := c.Status(ctx, endpoint)
			answers[i] = err == nil && is.Leader != 0
			return nil // no answer is one, too
		})
	}
	_ = g.Wait()
	var chosen []string
	for i, endpoint := range endpoints {
		if answers[i] {
			chosen = append(chosen, endpoint)
		}
	}
	if len(chosen) == 0 {
		return endpoints
	}
	return chosen
}
