package replicator

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/keyspace"
)

// patience is how long a test waits for a condition before it fails: far above
// what anything takes, because the machine may be busy.
const patience = time.Minute

// noLeaks fails the test if goroutines that it started outlive it. Call it first.
func noLeaks(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	// The proxy of slow links leaves one behind for each connection that is closed
	// with data under way.
	proxy := goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run")
	t.Cleanup(func() { goleak.VerifyNone(t, ignore, proxy) })
}

// source is an origin's etcd.
type source struct {
	client *clientv3.Client
	prefix string
}

func (s source) Client() *clientv3.Client { return s.client }
func (s source) OwnPrefix() string        { return s.prefix }

// rig is an origin, a peer and what mirrors between them.
type rig struct {
	t            *testing.T
	origin, peer *etcdtest.Server
	from, to     *clientv3.Client
	prefix       string
	// via, if set, is how the replicator reaches the origin.
	via *clientv3.Client
	// endpoint is the peer's address as the replicator sees it.
	endpoint       string
	ttl            int64
	user, password string
	// change, if set, changes a replicator before it starts.
	change func(*Replicator)
	// intercept is where requests to the peer may be made to fail.
	intercept grpc.UnaryClientInterceptor
}

func newRig(t *testing.T, peer ...etcdtest.Option) *rig {
	t.Helper()
	r := &rig{t: t, origin: etcdtest.Start(t, func(c *embed.Config) { c.MaxTxnOps = 1000 }), peer: etcdtest.Start(t, peer...), prefix: keyspace.RegionPrefix("a"), ttl: 10}
	r.from, r.to = r.origin.Client(t), r.peer.Client(t)
	r.endpoint = r.peer.Endpoint()
	return r
}

func (r *rig) peerConfig() Peer {
	return Peer{Region: "b", Endpoints: []string{r.endpoint}, Username: r.user, Password: r.password}
}

// running is a replicator at work.
type running struct {
	*Replicator
	stop func() error
}

// start starts a replicator, which stops at the latest when the test ends.
func (r *rig) start(peers ...Peer) *running {
	r.t.Helper()
	if len(peers) == 0 {
		peers = []Peer{r.peerConfig()}
	}
	ctx, cancel := context.WithCancel(context.Background())
	rep := &Replicator{
		Source: source{cmp.Or(r.via, r.from), r.prefix}, Peers: peers, LeaseTTLSeconds: r.ttl, Holder: r.t.Name(),
		intercept: r.intercept,
		Log:       slog.New(slog.NewTextHandler(testLog{r.t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if r.change != nil {
		r.change(rep)
	}
	done := make(chan error, 1)
	go func() { done <- rep.Start(ctx) }()
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	r.t.Cleanup(func() {
		if err := stop(); err != nil {
			r.t.Errorf("replicator ended with: %v", err)
		}
	})
	return &running{rep, stop}
}

// testLog writes logs into the test's output.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s %s", time.Now().Format("05.000"), p[:max(0, len(p)-1)])
	return len(p), nil
}

func (r *rig) key(i int) string {
	return fmt.Sprintf("%sclusters/c1/services/s%04d/protocols/http/endpoints/10.0.%d.%d", r.prefix, i/50, i/250, i%250)
}

// put writes keys from up to (not including) to, many in a transaction.
func (r *rig) put(from, to int, value string) {
	r.t.Helper()
	write(r.t, r.from, from, to, func(i int) clientv3.Op { return clientv3.OpPut(r.key(i), value) })
}

func (r *rig) remove(from, to int) {
	r.t.Helper()
	write(r.t, r.from, from, to, func(i int) clientv3.Op { return clientv3.OpDelete(r.key(i)) })
}

func write(tb testing.TB, c *clientv3.Client, from, to int, make func(int) clientv3.Op) {
	tb.Helper()
	for ; from < to; from += 100 {
		var ops []clientv3.Op
		for i := from; i < min(to, from+100); i++ {
			ops = append(ops, make(i))
		}
		if _, err := c.Txn(context.Background()).Then(ops...).Commit(); err != nil {
			tb.Fatal(err)
		}
	}
}

// content reads everything below a prefix.
func content(ctx context.Context, c *clientv3.Client, prefix string) (map[string]*mvccpb.KeyValue, error) {
	got, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	all := make(map[string]*mvccpb.KeyValue, len(got.Kvs))
	for _, kv := range got.Kvs {
		all[string(kv.Key)] = kv
	}
	return all, nil
}

// eventually waits until check returns "", and fails the test with its last word
// if it never does.
func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		why := check()
		if why == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %s", what, why)
		}
	}
}

// waitMirrored waits until the mirror equals the origin, each key on a live lease.
func (r *rig) waitMirrored() {
	r.t.Helper()
	eventually(r.t, "mirror equals origin", func() string { return r.differs() })
}

// differs says how the mirror differs from its origin, "" when it does not.
func (r *rig) differs() string {
	want, err := content(r.t.Context(), r.from, r.prefix)
	if err != nil {
		return err.Error()
	}
	got, err := content(r.t.Context(), r.to, r.prefix)
	if err != nil {
		return err.Error()
	}
	leases := map[int64]int{}
	for key, kv := range want {
		m := got[key]
		switch {
		case m == nil:
			return fmt.Sprintf("%s is missing (%d of %d keys are there)", key, len(got), len(want))
		case string(m.Value) != string(kv.Value):
			return fmt.Sprintf("%s is %.40q, want %.40q", key, m.Value, kv.Value)
		case m.Lease == 0:
			return key + " is on no lease"
		}
		leases[m.Lease]++
	}
	if len(got) != len(want) {
		return fmt.Sprintf("mirror has %d keys, origin %d", len(got), len(want))
	}
	return r.leasesAre(leases)
}

// leasesAre checks that leases are alive and not overloaded.
func (r *rig) leasesAre(leases map[int64]int) string {
	for _, id := range slices.Sorted(maps.Keys(leases)) {
		if leases[id] > maxKeysPerLease {
			return fmt.Sprintf("lease %x carries %d keys", id, leases[id])
		}
		left, err := r.to.TimeToLive(r.t.Context(), clientv3.LeaseID(id))
		if err != nil {
			return err.Error()
		}
		if left.TTL <= 0 {
			return fmt.Sprintf("lease %x is gone", id)
		}
	}
	return ""
}

// state returns the state key's content as read on the peer.
func (r *rig) found() found {
	r.t.Helper()
	m := &mirror{Replicator: &Replicator{}, origin: "a", prefix: r.prefix, client: r.to, log: slog.Default()}
	f, err := m.read(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// waitState waits until a running replicator's mirror to b is in a state.
func (r *rig) waitState(rep *running, want State) PeerStatus {
	r.t.Helper()
	var last PeerStatus
	eventually(r.t, fmt.Sprintf("state %s", want), func() string {
		for _, s := range rep.Status() {
			if s.Region == "b" {
				last = s
			}
		}
		if last.State == want {
			return ""
		}
		return fmt.Sprintf("it is %s, last error %q", last.State, last.LastError)
	})
	return last
}

// changes records every event below the origin's prefix on the peer.
type changes struct {
	t      *testing.T
	to     *clientv3.Client
	cancel context.CancelFunc
	done   chan struct{}
	events []*clientv3.Event
}

func (r *rig) recordChanges() *changes {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &changes{t: r.t, to: r.to, cancel: cancel, done: make(chan struct{})}
	w := r.to.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCreatedNotify(), clientv3.WithPrevKV())
	<-w // created
	go func() {
		defer close(c.done)
		for resp := range w {
			for _, e := range resp.Events {
				switch key := string(e.Kv.Key); {
				case key == endOfRecording:
					return
				case strings.HasPrefix(key, r.prefix):
					c.events = append(c.events, e)
				}
			}
		}
	}()
	r.t.Cleanup(cancel)
	return c
}

// endOfRecording is a key whose change ends one.
const endOfRecording = "/end-of-recording"

// stop ends the recording, once everything up to now has been seen, and returns
// the number of puts and deletes.
func (c *changes) stop() (puts, deletes int) {
	c.t.Helper()
	if _, err := c.to.Put(c.t.Context(), endOfRecording, ""); err != nil {
		c.t.Fatal(err)
	}
	<-c.done
	c.cancel()
	for _, e := range c.events {
		if e.Type == clientv3.EventTypeDelete {
			deletes++
		} else {
			puts++
		}
	}
	return puts, deletes
}
