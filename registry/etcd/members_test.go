package etcd_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/etcd"
)

// A member that hangs is left out, and used again once it goes on. When none is of
// use, all are tried.
func TestTendLeavesSilentMembersOut(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3)
	all := cluster.Endpoints()
	client, used := observed(t, all)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- etcd.Tend(ctx, client, slog.New(slog.DiscardHandler)) }()
	await(t, "all are used", func() bool { return used(all) })

	cluster.Member(1).Signal(syscall.SIGSTOP)
	await(t, "one is left out", func() bool { return slices.Equal(client.Endpoints(), []string{all[0], all[2]}) })
	cluster.Member(1).Signal(syscall.SIGCONT)
	await(t, "it is back", func() bool { return slices.Equal(client.Endpoints(), all) && used(all) })

	cluster.Member(1).Signal(syscall.SIGSTOP)
	await(t, "it is left out again", func() bool { return len(client.Endpoints()) == 2 })
	cluster.Member(2).Signal(syscall.SIGSTOP)
	await(t, "the third, without a leader, is as good as the others", func() bool { return slices.Equal(client.Endpoints(), all) })
	cluster.Signal(syscall.SIGCONT)
	await(t, "all are used in the end", func() bool { return used(all) })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// observed returns a client, and whether each of these members has answered it
// since it was last asked.
func observed(t *testing.T, endpoints []string) (*clientv3.Client, func([]string) bool) {
	t.Helper()
	var mu sync.Mutex
	answered := map[string]bool{}
	note := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		var from peer.Peer
		err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Peer(&from))...)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			answered[from.Addr.String()] = true
		}
		return err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(note)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, func(want []string) bool {
		mu.Lock()
		defer mu.Unlock()
		got := slices.Sorted(maps.Keys(answered))
		clear(answered)
		return slices.Equal(got, slices.Sorted(slices.Values(want)))
	}
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(1500 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it is still not so that %s", what)
		}
	}
}
