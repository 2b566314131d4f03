package replicator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/aether-federation/aether/internal/wantest"
)

// observer watches all of an etcd and tells of each event, in order.
type observer struct {
	t       *testing.T
	name    string
	cancel  context.CancelFunc
	done    chan struct{}
	reached atomic.Int64
}

func observe(t *testing.T, name string, c *clientv3.Client, after int64, tell func(*clientv3.Event)) *observer {
	ctx, cancel := context.WithCancel(context.Background())
	o := &observer{t: t, name: name, cancel: cancel, done: make(chan struct{})}
	o.reached.Store(after)
	watch := c.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithPrevKV(), clientv3.WithRev(after+1))
	go func() {
		defer close(o.done)
		for resp := range watch {
			if err := resp.Err(); err != nil && ctx.Err() == nil {
				t.Errorf("watch %s: %v", name, err)
				return
			}
			for _, e := range resp.Events {
				tell(e)
				o.reached.Store(e.Kv.ModRevision)
			}
		}
	}()
	return o
}

func (o *observer) stop() {
	o.cancel()
	<-o.done
}

func (o *observer) seen() int64 { return o.reached.Load() }

// wait waits until everything up to a revision was told.
func (o *observer) wait(rev int64) {
	o.t.Helper()
	eventually(o.t, "events are seen", func() string {
		if o.seen() < rev {
			return fmt.Sprintf("of %s those up to %d and not %d", o.name, o.seen(), rev)
		}
		return ""
	})
}

// short is the part of a value that tells it from all others.
func short(value []byte) string {
	s, _, _ := strings.Cut(string(value), ".")
	return s
}

func (m *model) watchOrigin(after int64) {
	m.atOrigin = observe(m.t, "origin", m.from, after, func(e *clientv3.Event) {
		key := string(e.Kv.Key)
		if !strings.HasPrefix(key, m.prefix) {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if e.Type == clientv3.EventTypeDelete {
			m.truth.remove(key, e.Kv.ModRevision)
			m.history.of(key, "origin %d: deleted", e.Kv.ModRevision)
			return
		}
		m.truth.put(key, short(e.Kv.Value), e.Kv.ModRevision)
		m.history.of(key, "origin %d: %s", e.Kv.ModRevision, short(e.Kv.Value))
	})
}

func (m *model) watchPeer(after int64) {
	m.atPeer = observe(m.t, "peer", m.to, after, func(e *clientv3.Event) {
		s := sighting{at: time.Now(), rev: e.Kv.ModRevision, key: string(e.Kv.Key), deleted: e.Type == clientv3.EventTypeDelete, lease: e.Kv.Lease}
		if s.deleted && e.PrevKv != nil {
			s.lease = e.PrevKv.Lease
		}
		s.value = string(e.Kv.Value)
		if strings.HasPrefix(s.key, m.prefix) {
			s.value = short(e.Kv.Value)
			m.history.of(s.key, "peer %d: %q on lease %x, deleted: %v", s.rev, s.value, s.lease, s.deleted)
		} else if strings.HasPrefix(s.key, "/aether/") {
			m.history.tell("peer %d: %s, deleted: %v", s.rev, s.key, s.deleted)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pending = append(m.pending, s)
	})
}

// process is a replicator as if it were a process of its own, with its own
// connections.
type process struct {
	*running
	name string
	// toPeer are its links to the peer's members, toOrigin that to the origin.
	toPeer   []*wantest.Link
	toOrigin *wantest.Link
	client   *clientv3.Client
}

func (p *process) links() []*wantest.Link { return append([]*wantest.Link{p.toOrigin}, p.toPeer...) }

func (m *model) startReplicator() *process {
	m.t.Helper()
	m.started++
	p := &process{name: fmt.Sprint("replicator ", m.started), toOrigin: wantest.New(m.t, m.origin.Endpoints()[0], 0)}
	peer := Peer{Region: "b"}
	for _, endpoint := range m.peer.Endpoints() {
		link := wantest.New(m.t, endpoint, 0)
		p.toPeer = append(p.toPeer, link)
		peer.Endpoints = append(peer.Endpoints, link.Address())
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{p.toOrigin.Address()}, DialTimeout: defaultDialTimeout, Logger: zap.NewNop(),
		DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingTimeout, PermitWithoutStream: true,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	p.client = client
	runs := *m.rig
	runs.from, runs.intercept = client, m.late.intercept
	runs.change = func(rep *Replicator) { rep.Holder, rep.Log = p.name, m.history.logger(p.name) }
	p.running = runs.start(peer)
	m.replicators, m.last = append(m.replicators, p), p
	m.history.tell("%s started", p.name)
	return p
}

// stopReplicator stops one as its program does.
func (m *model) stopReplicator(p *process) {
	if err := p.stop(); err != nil {
		m.t.Errorf("%s ended with: %v", p.name, err)
	}
	_ = p.client.Close() // its context's end is the only error
	for _, link := range p.links() {
		link.Down()
	}
	for i, other := range m.replicators {
		if other == p {
			m.replicators = append(m.replicators[:i:i], m.replicators[i+1:]...)
			break
		}
	}
	m.history.tell("%s stopped", p.name)
}

// newest is the replicator that was started last; it may have been stopped.
func (m *model) newest() *process { return m.last }

// writer changes the origin at random. Each value has a number that no other has.
type writer struct {
	model *model
	rng   *rand.Rand
	// gate is held while a change is made, and while there must be none.
	gate chan struct{}
	wait atomic.Int64
	seq  int
}

const (
	// modelKeys are the keys that change, and burstKeys those of a burst.
	modelKeys, burstKeys = 600, 250
	writeTimeout         = 500 * time.Millisecond
)

func newWriter(m *model, seed uint64) *writer {
	w := &writer{model: m, gate: make(chan struct{}, 1), rng: rand.New(rand.NewPCG(seed, 1<<62))}
	w.wait.Store(int64(5 * time.Millisecond))
	return w
}

// pace sets the time between two changes; 0 is none at all.
func (w *writer) pace(wait time.Duration) { w.wait.Store(int64(wait)) }

func (w *writer) pause()  { w.gate <- struct{}{} }
func (w *writer) resume() { <-w.gate }

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case w.gate <- struct{}{}:
		case <-ctx.Done(): // a test that failed during a pause
			return
		}
		wait := time.Duration(w.wait.Load())
		if wait > 0 {
			w.change(ctx)
		}
		<-w.gate
		sleep(ctx, max(wait, time.Millisecond))
	}
}

// change makes one change. What becomes of it is seen by the watch alone: one
// without an answer may have been made or not.
func (w *writer) change(ctx context.Context) {
	switch n := w.rng.IntN(100); {
	case n < 55:
		w.commit(ctx, w.put(w.rng.IntN(modelKeys)))
	case n < 65:
		w.commit(ctx, w.remove(w.rng.IntN(modelKeys)))
	case n < 85:
		w.commit(ctx, w.mixed()...)
	case n < 92:
		i := w.rng.IntN(modelKeys) // gone and back at once
		w.commit(ctx, w.remove(i))
		w.commit(ctx, w.put(i))
	case n < 98:
		first := w.rng.IntN(modelKeys)
		w.commit(ctx, clientv3.OpDelete(w.model.key(first), clientv3.WithRange(w.model.key(first+w.rng.IntN(40)))))
	default:
		w.burst(ctx)
	}
}

func (w *writer) put(i int) clientv3.Op {
	w.seq++
	return clientv3.OpPut(w.model.key(i), fmt.Sprintf("%07d.%s", w.seq, strings.Repeat("x", w.rng.IntN(200))))
}

func (w *writer) remove(i int) clientv3.Op { return clientv3.OpDelete(w.model.key(i)) }

// mixed is a transaction of several operations on different keys.
func (w *writer) mixed() []clientv3.Op {
	var ops []clientv3.Op
	for n, i := range w.rng.Perm(modelKeys)[:2+w.rng.IntN(30)] {
		if n%4 == 3 {
			ops = append(ops, w.remove(i))
		} else {
			ops = append(ops, w.put(i))
		}
	}
	return ops
}

// burst puts or removes neighbouring keys, enough to split a lease's range.
func (w *writer) burst(ctx context.Context) {
	first, remove := modelKeys+w.rng.IntN(2)*burstKeys, w.rng.IntN(2) == 0
	if remove {
		w.commit(ctx, clientv3.OpDelete(w.model.key(first), clientv3.WithRange(w.model.key(first+burstKeys))))
		return
	}
	w.fill(ctx, first, first+burstKeys)
}

func (w *writer) fill(ctx context.Context, from, to int) {
	var ops []clientv3.Op
	for i := from; i < to; i++ {
		if ops = append(ops, w.put(i)); len(ops) == 100 || i == to-1 {
			w.commit(ctx, ops...)
			ops = nil
		}
	}
}

func (w *writer) commit(ctx context.Context, ops ...clientv3.Op) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := w.model.from.Txn(ctx).Then(ops...).Commit(); err != nil && ctx.Err() == nil {
		w.model.history.tell("change of the origin: %v", err)
	}
}
