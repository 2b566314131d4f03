package bench

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/replicator"
)

type source struct{ client *clientv3.Client }

func (s source) Client() *clientv3.Client { return s.client }
func (s source) OwnPrefix() string        { return keyspace.RegionPrefix("a") }

// pair is an origin's etcd with keys and a peer's without, as processes of their
// own, and a link between them.
type pair struct {
	b            *testing.B
	origin, peer *etcdtest.Process
	from, to     *clientv3.Client
	link         *wantest.Link
	config       replicator.Peer
}

func newPair(b *testing.B, rtt time.Duration, keys int, options ...func(*pair)) *pair {
	b.Helper()
	p := &pair{b: b, origin: etcdtest.StartProcess(b), peer: etcdtest.StartProcess(b)}
	p.from, p.to = p.origin.Client(b), p.peer.Client(b)
	p.link = wantest.New(b, p.peer.Endpoint(), rtt)
	p.config = replicator.Peer{Region: "b", Endpoints: []string{p.link.Address()}}
	fill(b, p.from, keys)
	for _, option := range options {
		option(p)
	}
	return p
}

// end frees the machine for what is measured next.
func (p *pair) end() {
	p.origin.Kill()
	p.peer.Kill()
}

// withUser turns authentication on at the peer and mirrors as a user who may
// write the origin's two prefixes and no more.
func withUser(p *pair) {
	ctx, c := context.Background(), p.to
	do := func(_ any, err error) { must(p.b, err) }
	do(c.Put(ctx, keyspace.StoreKey, "the-peer"))
	do(c.UserAdd(ctx, "root", "secret"))
	do(c.UserGrantRole(ctx, "root", "root"))
	do(c.RoleAdd(ctx, "mirror"))
	for _, prefix := range []string{keyspace.RegionPrefix("a"), keyspace.MirrorPrefix("a")} {
		do(c.RoleGrantPermission(ctx, "mirror", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	do(c.RoleGrantPermission(ctx, "mirror", keyspace.StoreKey, "", clientv3.PermissionType(clientv3.PermRead)))
	do(c.UserAdd(ctx, "mirror", "secret"))
	do(c.UserGrantRole(ctx, "mirror", "mirror"))
	do(c.AuthEnable(ctx))
	p.config.Username, p.config.Password = "mirror", "secret"
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{p.peer.Endpoint()}, Username: "root", Password: "secret"})
	must(p.b, err)
	p.b.Cleanup(func() { _ = root.Close() })
	p.to = root
}

// mirroring is a replicator at work.
type mirroring struct {
	*replicator.Replicator
	b      *testing.B
	cancel context.CancelFunc
	done   chan error
}

func (p *pair) start(peers ...replicator.Peer) *mirroring {
	r := &replicator.Replicator{
		Source: source{p.from}, Log: slog.New(slog.DiscardHandler), Peers: append([]replicator.Peer{p.config}, peers...),
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &mirroring{Replicator: r, b: p.b, cancel: cancel, done: make(chan error, 1)}
	go func() { m.done <- r.Start(ctx) }()
	return m
}

func (m *mirroring) stop() {
	m.b.Helper()
	m.cancel()
	must(m.b, <-m.done)
}

// waitLive waits until all mirrors are live.
func (m *mirroring) waitLive() {
	m.b.Helper()
	await(m.b, func() bool {
		live := 0
		for _, s := range m.Status() {
			if s.State == replicator.StateLive {
				live++
			}
		}
		return live == len(m.Peers)
	})
}

// await waits for a condition, looking every other millisecond.
func await(b *testing.B, is func() bool) {
	b.Helper()
	deadline := time.Now().Add(10 * time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if is() {
			return
		}
		if time.Now().After(deadline) {
			b.Fatal("waited for ten minutes")
		}
	}
}

func (p *pair) count() int {
	p.b.Helper()
	got, err := p.to.Get(context.Background(), keyspace.RegionPrefix("a"), clientv3.WithPrefix(), clientv3.WithCountOnly())
	must(p.b, err)
	return int(got.Count)
}

// firstMirror measures from the start of a replicator until the mirror of an
// empty peer is complete.
func firstMirror(b *testing.B, rtt time.Duration, keys int, options ...func(*pair)) time.Duration {
	b.Helper()
	p := newPair(b, rtt, keys, options...)
	defer p.end()
	begun := time.Now()
	m := p.start()
	m.waitLive()
	took := time.Since(begun)
	m.stop()
	if n := p.count(); n != keys {
		b.Fatalf("%d of %d keys were mirrored", n, keys)
	}
	return took
}

// makeMirror measures etcdctl make-mirror on as many keys.
func makeMirror(b *testing.B, rtt time.Duration, keys int) time.Duration {
	b.Helper()
	p := newPair(b, rtt, keys)
	defer p.end()
	etcdctl := filepath.Join(b.TempDir(), "etcdctl")
	build := exec.Command("go", "build", "-o", etcdctl, "go.etcd.io/etcd/etcdctl/v3")
	build.Dir, build.Stderr = filepath.Join("..", "tools"), os.Stderr
	must(b, build.Run())
	cmd := exec.Command(etcdctl, "--endpoints", p.origin.Endpoint(), "make-mirror", p.link.Address(), "--prefix", keyspace.RegionPrefix("a"))
	begun := time.Now()
	must(b, cmd.Start())
	await(b, func() bool { return p.count() >= keys })
	took := time.Since(begun)
	_ = cmd.Process.Kill() // it never ends by itself
	_ = cmd.Wait()         // with the kill's status
	return took
}
