package replicator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// shortly bounds what is tried on a side that may not answer.
func (m *model) shortly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(m.t.Context(), writeTimeout)
}

// mirrored returns some keys of the mirror, beginning at one chosen by arg.
func (m *model) mirrored(arg, limit int) *clientv3.GetResponse {
	ctx, cancel := m.shortly()
	defer cancel()
	got, err := m.to.Get(ctx, m.key(arg%modelKeys), clientv3.WithRange(clientv3.GetPrefixRangeEnd(m.prefix)), clientv3.WithLimit(int64(limit)))
	if err != nil {
		m.history.tell("read mirror: %v", err)
		return &clientv3.GetResponse{}
	}
	return got
}

// revokeLeases revokes one lease of the mirror, or some.
func revokeLeases(m *model, arg int) func() {
	limit := []int{1, 1, 300}[arg%3]
	done := map[int64]bool{}
	for _, kv := range m.mirrored(arg, limit).Kvs {
		if kv.Lease == 0 || done[kv.Lease] {
			continue
		}
		done[kv.Lease] = true
		m.mu.Lock()
		m.excuses.leases[kv.Lease] = true
		m.mu.Unlock()
		ctx, cancel := m.shortly()
		_, err := m.to.Revoke(ctx, clientv3.LeaseID(kv.Lease))
		cancel()
		m.history.tell("lease %x revoked: %v", kv.Lease, err)
	}
	return nil
}

// deleteKeys deletes some keys of the mirror.
func deleteKeys(m *model, arg int) func() {
	var ops []clientv3.Op
	var keys []string
	for _, kv := range m.mirrored(arg, 1+arg%100).Kvs {
		keys = append(keys, string(kv.Key))
		ops = append(ops, clientv3.OpDelete(string(kv.Key)))
	}
	if len(ops) == 0 {
		return nil
	}
	began := time.Now()
	ctx, cancel := m.shortly()
	defer cancel()
	resp, err := m.to.Txn(ctx).Then(ops...).Commit()
	m.history.tell("%d keys from %s deleted: %v", len(keys), keys[0], err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.excuses.revs[resp.Header.Revision] = true
		return nil
	}
	for _, key := range keys {
		m.excuses.keys[key] = began
	}
	return nil
}

// fillPeer writes until the peer refuses, and makes space again.
func fillPeer(m *model, _ int) func() {
	block := strings.Repeat("x", 1<<20)
	last := int64(0)
	eventually(m.t, "the peer is full", func() string {
		resp, err := m.to.Put(m.t.Context(), fmt.Sprint("/fill/", rand.Uint32()), block)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return ""
		}
		if err != nil {
			return err.Error()
		}
		last = resp.Header.Revision
		return "it takes more"
	})
	m.atPeer.wait(last)
	return m.makeSpace
}

func (m *model) makeSpace() {
	m.t.Helper()
	ctx := m.t.Context()
	got, err := m.to.Delete(ctx, "/fill/", clientv3.WithPrefix())
	if err != nil {
		m.t.Fatal(err)
	}
	m.atPeer.wait(got.Header.Revision)
	if _, err := m.to.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		m.t.Fatal(err)
	}
	for _, endpoint := range m.peer.Endpoints() {
		if _, err := m.to.Defragment(ctx, endpoint); err != nil {
			m.t.Fatal(err)
		}
	}
	if _, err := m.to.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		m.t.Fatal(err)
	}
}

// lateness makes transactions and grants of unknown outcome: some get lost, some
// only their answers, and some arrive when their sender has long given up.
type lateness struct {
	model *model
	mu    sync.Mutex
	rng   *rand.Rand
	// share, in percent, of the requests; 0: none.
	share int
	// wiped is closed when a restored peer can't be reached by what was sent
	// before.
	wiped chan struct{}
	held  sync.WaitGroup
}

func newLateness(seed uint64) *lateness {
	return &lateness{rng: rand.New(rand.NewPCG(seed, 1<<61)), wiped: make(chan struct{})}
}

func (l *lateness) start(percent int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.share = percent
}

func (l *lateness) stop() { l.start(0) }

// wait waits until everything that was late has landed.
func (l *lateness) wait() { l.held.Wait() }

// forget drops everything that is under way.
func (l *lateness) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.wiped)
	l.wiped = make(chan struct{})
}

// fate of a request.
type fate int

const (
	arrives fate = iota
	answerLost
	lost
	arrivesLate
)

func (f fate) String() string { return [...]string{"arrives", "answer lost", "lost", "late"}[f] }

func (l *lateness) draw() (fate, time.Duration, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rng.IntN(100) >= l.share {
		return arrives, 0, nil
	}
	delay := time.Duration(l.rng.Int64N(int64(4 * time.Second)))
	return fate(1 + l.rng.IntN(3)), delay, l.wiped
}

func (l *lateness) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	deliver := func() error { return invoke(ctx, method, req, reply, cc, opts...) }
	if !writes(req) {
		return deliver()
	}
	fate, delay, wiped := l.draw()
	switch fate {
	case arrives:
		return deliver()
	case answerLost:
		if err := deliver(); err != nil {
			return err
		}
	case arrivesLate:
		l.send(proto.CloneOf(req.(proto.Message)), delay, wiped)
	}
	l.model.history.tell("%s: %T with %d operations, by %v", fate, req, operations(req), delay)
	return grpcstatus.Error(codes.DeadlineExceeded, "the answer is lost")
}

// writes reports whether a request changes something and is sent once.
func writes(req any) bool {
	_, grant := req.(*pb.LeaseGrantRequest)
	return grant || operations(req) > 0
}

func operations(req any) (n int) {
	if txn, ok := req.(*pb.TxnRequest); ok {
		for _, op := range txn.Success {
			if op.GetRequestRange() == nil {
				n++
			}
		}
	}
	return n
}

// send delivers a request later, by a connection of the test's own.
func (l *lateness) send(req proto.Message, delay time.Duration, wiped chan struct{}) {
	l.held.Add(1)
	go func() {
		defer l.held.Done()
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-wiped:
			return
		case <-l.model.t.Context().Done():
			return
		}
		ctx, cancel := l.model.shortly()
		defer cancel()
		conn := l.model.to.ActiveConnection()
		switch req := req.(type) {
		case *pb.TxnRequest:
			resp, err := pb.NewKVClient(conn).Txn(ctx, req)
			l.model.history.tell("late transaction of %d operations landed: it holds: %v, %v", operations(req), resp.GetSucceeded(), err)
		case *pb.LeaseGrantRequest:
			_, err := pb.NewLeaseClient(conn).LeaseGrant(ctx, req)
			l.model.history.tell("late grant of %x landed: %v", req.ID, err)
		}
	}()
}
