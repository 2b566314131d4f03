package replicator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
)

// puts returns the values that a transaction puts, by key.
func puts(req any) map[string]string {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return nil
	}
	values := map[string]string{}
	for _, op := range txn.Success {
		if put := op.GetRequestPut(); put != nil {
			values[string(put.Key)] = string(put.Value)
		}
	}
	return values
}

// lateTransaction makes the first transaction that puts value look as if it had
// timed out, and lets it land when land is called.
type lateTransaction struct {
	value string
	once  sync.Once
	held  chan func() error
}

func (l *lateTransaction) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for _, v := range puts(req) {
		if v != l.value {
			continue
		}
		late := false
		l.once.Do(func() { late = true })
		if late {
			request := proto.CloneOf(req.(*pb.TxnRequest))
			l.held <- func() error {
				return invoke(context.WithoutCancel(ctx), method, request, &pb.TxnResponse{}, cc, opts...)
			}
			return grpcstatus.Error(codes.DeadlineExceeded, "the answer is lost")
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// Failure case 19: a transaction that timed out lands after its successor was
// acknowledged. The newer value stays.
func TestATransactionThatLandsLateChangesNothing(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	late := &lateTransaction{value: "old", held: make(chan func() error, 1)}
	r.intercept = late.intercept
	r.put(0, 50, "first")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)

	r.put(0, 1, "old")
	land := <-late.held
	r.put(0, 1, "new")
	r.waitMirrored()
	watched := r.recordChanges()
	// Its client may be closed by now, which is as good as never landing; but
	// while it is open the transaction arrives and must find the fence changed.
	if err := land(); err != nil && grpcstatus.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	r.put(1, 2, "after it landed")
	r.waitMirrored()
	if n, _ := watched.stop(); n != 1 {
		t.Errorf("%d puts on the peer after the late transaction, want the one made later", n)
	}
}

// Failure case 20: acknowledged batches above the checkpoint are not undone, not
// for a moment, by a successor that replays.
func TestReplayNeverShowsAnOlderValue(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 200, "v000")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	watched := r.recordChanges()
	for round := 1; round <= 5; round++ {
		r.put(0, 200, fmt.Sprintf("v%03d", round))
	}
	r.waitMirrored()
	if err := first.stop(); err != nil { // leaves its checkpoint far behind
		t.Fatal(err)
	}
	second := r.start()
	r.waitState(second, StateLive)
	r.put(0, 10, "v999")
	r.waitMirrored()
	watched.stop()
	last := map[string]string{}
	for _, e := range watched.events {
		key, value := string(e.Kv.Key), string(e.Kv.Value)
		if e.Type == clientv3.EventTypeDelete || value < last[key] {
			t.Fatalf("%s: %v %q after %q", key, e.Type, value, last[key])
		}
		last[key] = value
	}
}

// Two replicators of one origin: the second takes over, and what the first still
// sends changes nothing.
func TestASecondReplicatorFencesTheFirst(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 300, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	second := r.start()
	r.waitState(second, StateLive)
	r.put(0, 100, "w")
	r.waitState(first, StateStandby)
	r.waitMirrored()
	r.waitState(second, StateLive)
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	r.put(0, 100, "x")
	r.waitState(first, StateLive) // the second's lease is no longer renewed
	r.waitMirrored()
}

// Failure case 6, in small: compactions while a first sync is under way and keys
// change. No key shows an older value after a newer one.
func TestCompactionsDuringTheFirstSync(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 20000, "00000")
	r.endpoint = wantest.New(t, r.peer.Endpoint(), 40*time.Millisecond).Address()
	watched := r.recordChanges()
	rep := r.start()
	written := 0
	eventually(t, "it finishes", func() string {
		for range 20 {
			written++
			resp, err := r.from.Put(t.Context(), r.key(written*97%20000), fmt.Sprintf("%05d", written))
			if err != nil {
				t.Fatal(err)
			}
			if written%100 == 0 {
				if _, err := r.from.Compact(t.Context(), resp.Header.Revision); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, s := range rep.Status() {
			if s.State == StateLive {
				return ""
			}
		}
		return "not yet live"
	})
	r.waitMirrored()
	watched.stop()
	last := map[string]string{}
	for _, e := range watched.events {
		if key, value := string(e.Kv.Key), string(e.Kv.Value); value < last[key] {
			t.Fatalf("%s shows %s after %s", key, value, last[key])
		} else {
			last[key] = value
		}
	}
}

// Failure case 9, in small: the peer is black-holed for longer than the TTL while
// keys change all the time.
func TestABlackHoledPeerIsMirroredAgain(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 3
	link := wantest.New(t, r.peer.Endpoint(), 0)
	r.endpoint = link.Address()
	r.put(0, 1000, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	link.Cut()
	round := 0
	eventually(t, "the mirror lapses", func() string {
		round++
		r.put(0, 1000, fmt.Sprint("round ", round))
		got, err := content(t.Context(), r.to, r.prefix)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > 0 {
			return fmt.Sprint(len(got), " keys are left")
		}
		return ""
	})
	link.Heal()
	r.waitMirrored()
	r.waitState(rep, StateLive)
}

// Failure case 10: a peer without space, until space is made.
func TestAFullPeer(t *testing.T) {
	noLeaks(t)
	r := newRig(t, func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 })
	r.put(0, 300, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	fillUp(t, r.to)

	r.put(0, 100, "parked")
	r.waitState(rep, StateFull)
	r.remove(200, 300)
	eventually(t, "deletes go on", func() string {
		got, err := content(t.Context(), r.to, r.prefix)
		if err != nil {
			return err.Error()
		}
		if len(got) != 200 {
			return fmt.Sprint(len(got), " keys")
		}
		return ""
	})
	makeSpace(t, r.to, r.peer.Endpoint())
	r.waitMirrored()
	r.waitState(rep, StateLive)
}

func fillUp(t *testing.T, c *clientv3.Client) {
	t.Helper()
	block := strings.Repeat("x", 1<<20)
	for i := range 100 {
		if _, err := c.Put(t.Context(), fmt.Sprint("/fill/", i), block); errors.Is(err, rpctypes.ErrNoSpace) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("100 MiB do not fill an etcd with a quota of 8 MiB")
}

func makeSpace(t *testing.T, c *clientv3.Client, endpoint string) {
	t.Helper()
	ctx := t.Context()
	got, err := c.Delete(ctx, "/fill/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Defragment(ctx, endpoint); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
}

// A full peer that is taken over: keepalives and deletes go on under the new
// leader, and puts once there is space.
func TestAFullPeerIsTakenOver(t *testing.T) {
	noLeaks(t)
	r := newRig(t, func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 })
	r.put(0, 300, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	fillUp(t, r.to)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := r.start()
	r.put(0, 10, "parked")
	r.remove(200, 300)
	eventually(t, "deletes go on", func() string {
		got, err := content(t.Context(), r.to, r.prefix)
		if err != nil {
			return err.Error()
		}
		if len(got) != 200 {
			return fmt.Sprint(len(got), " keys")
		}
		return ""
	})
	makeSpace(t, r.to, r.peer.Endpoint())
	r.waitMirrored()
	r.waitState(second, StateLive)
}

// Failure case 11, its second half: one origin revision of 500 operations.
func TestOneRevisionOf500Operations(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	rep := r.start()
	r.waitState(rep, StateLive)
	var ops []clientv3.Op
	for i := range 500 {
		ops = append(ops, clientv3.OpPut(r.key(i), "v"))
	}
	if _, err := r.from.Txn(t.Context()).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
	r.waitMirrored()
}

// A peer that allows fewer operations in a transaction than is usual.
func TestAPeerWithFewOperationsPerTransaction(t *testing.T) {
	noLeaks(t)
	r := newRig(t, func(c *embed.Config) { c.MaxTxnOps = 20 })
	r.put(0, 1000, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	r.put(0, 200, "w")
	second := r.start()
	r.waitMirrored()
	r.waitState(second, StateLive)
}

// A value that the peer refuses is left out, its older value removed, and the
// rest flows.
func TestAPoisonValue(t *testing.T) {
	noLeaks(t)
	r := newRig(t, func(c *embed.Config) { c.MaxRequestBytes = 64 << 10 })
	r.put(0, 300, "v")
	rep := r.start()
	r.waitMirrored()
	if _, err := r.from.Put(t.Context(), r.key(7), strings.Repeat("x", 100<<10)); err != nil {
		t.Fatal(err)
	}
	r.put(8, 20, "w")
	eventually(t, "all but the poison", func() string {
		got, err := content(t.Context(), r.to, r.prefix)
		if err != nil {
			return err.Error()
		}
		if len(got) != 299 || got[r.key(7)] != nil || string(got[r.key(8)].Value) != "w" {
			return fmt.Sprint(len(got), " keys")
		}
		return ""
	})
	eventually(t, "the status names it", func() string {
		if s := rep.Status()[0]; len(s.Poison) != 1 || s.Poison[0] != r.key(7) || s.Pending != 0 {
			return fmt.Sprint(s.Poison, s.Pending)
		}
		return ""
	})
	r.put(7, 8, "cured")
	r.waitMirrored()
}

// Failure case 18: a peer that hangs delays only itself.
func TestAnUnreachablePeerDelaysOnlyItself(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 100, "v")
	third := etcdtest.Start(t)
	hanging := wantest.New(t, third.Endpoint(), 0)
	hanging.Cut()
	rep := r.start(Peer{Region: "c", Endpoints: []string{hanging.Address()}}, r.peerConfig())
	r.waitMirrored()
	r.waitState(rep, StateLive)
	hanging.Heal()
	r.to = third.Client(t)
	r.waitMirrored()
}

// An origin that was restored from an older backup: what it lost leaves the
// mirror, what it has stays.
func TestAnOriginRestoredFromABackup(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 500, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	backup := etcdtest.Backup(t, r.origin)
	r.put(0, 100, "w")
	r.put(500, 600, "lost")
	r.waitMirrored()
	backup.Restore(r.origin)
	r.waitMirrored()
	// The same number of revisions again, so that no number gives it away.
	r.put(0, 100, "other")
	r.put(600, 700, "other")
	r.waitMirrored()
	r.waitState(rep, StateLive)
}

// The origin without an answer counts as gone: its mirrors are not kept alive.
func TestNoKeepaliveWithoutTheOrigin(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 3
	r.put(0, 500, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	r.origin.Stop()
	eventually(t, "the region leaves the peer", func() string {
		got, err := content(t.Context(), r.to, r.prefix)
		if err != nil {
			return err.Error()
		}
		if len(got) > 0 {
			return fmt.Sprint(len(got), " keys are left")
		}
		return ""
	})
	r.origin.Restart()
	r.waitMirrored()
}
