package test

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// TestFrozenLeader stops the process that mirrors (SIGSTOP) for longer than its
// election lasts, while keys change all the time, and lets it go on when another
// mirrors. The peer never sees an older value after a newer one, and no delete.
func TestFrozenLeader(t *testing.T) {
	regions := fleet(t, "a", "b")
	first := regions[0].registrar(t, "a1")
	origin, peer := regions[0].etcd.Client(t), regions[1].etcd.Client(t)
	first.awaitState("/v1/peers", "b", "live")
	second := regions[0].registrar(t, "a2")

	watched := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { watched <- onlyNewer(ctx, peer) }()
	n := 0
	step := func() {
		n++
		for k := range 20 {
			key := fmt.Sprintf("%scounter-%02d", keyspace.RegionPrefix("a"), k)
			if _, err := origin.Put(t.Context(), key, strconv.Itoa(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	mirrored := func(who string) {
		t.Helper()
		step()
		now := n
		eventually(t, who+" mirrors the counters", func() bool {
			step()
			got, err := peer.Get(t.Context(), keyspace.RegionPrefix("a")+"counter-00")
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Kvs) == 0 {
				return false
			}
			seen, err := strconv.Atoi(string(got.Kvs[0].Value))
			return err == nil && seen >= now
		})
	}
	mirrored("the first")

	leader := second.leader("b")
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another leads", func() bool {
		step()
		now := second.leader("b")
		return now != "" && now != leader
	})
	mirrored("the second")
	if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// It is awake once it answers, and then tells the same leader.
	eventually(t, "the first is awake and agrees", func() bool {
		step()
		return first.leader("b") == second.leader("b")
	})
	mirrored("still the second")
	cancel()
	if err := <-watched; err != nil {
		t.Error(err)
	}
}

// leader is who mirrors to a peer, as a registrar tells.
func (p *registrar) leader(peer string) string {
	p.t.Helper()
	var answer struct {
		Peers []struct{ Region, Leader string }
	}
	p.get("/v1/peers", &answer)
	for _, x := range answer.Peers {
		if x.Region == peer {
			return x.Leader
		}
	}
	return ""
}

// onlyNewer watches counters until ctx ends and returns an error when one goes
// back or away.
func onlyNewer(ctx context.Context, c *clientv3.Client) error {
	last := map[string]int{}
	for resp := range c.Watch(ctx, keyspace.RegionPrefix("a")+"counter-", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		for _, e := range resp.Events {
			n, err := strconv.Atoi(string(e.Kv.Value))
			if e.Type == clientv3.EventTypeDelete || err != nil || n < last[string(e.Kv.Key)] {
				return fmt.Errorf("%s: %v %q after %d", e.Kv.Key, e.Type, e.Kv.Value, last[string(e.Kv.Key)])
			}
			last[string(e.Kv.Key)] = n
		}
	}
	return nil
}
