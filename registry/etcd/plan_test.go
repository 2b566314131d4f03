package etcd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
)

func testEndpoint(i int, node string) registry.Endpoint {
	return registry.Endpoint{
		Key: registry.Key{
			Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: "api", Protocol: registry.HTTP,
			IP: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
		},
		Node: node,
	}
}

func put(t *testing.T, e registry.Endpoint) write {
	t.Helper()
	w, err := puts([]registry.Endpoint{e})
	if err != nil {
		t.Fatal(err)
	}
	return w[0]
}

func remove(e registry.Endpoint) write {
	return removals([]registry.Claim{{Key: e.Key, Node: e.Node}})[0]
}

func TestDecide(t *testing.T) {
	stored := func(e registry.Endpoint) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Value: put(t, e).value, ModRevision: 7}
	}
	heavy := testEndpoint(1, "n1")
	heavy.Weight = 2
	elsewhere := testEndpoint(1, "n1")
	elsewhere.Region = "b"
	tests := []struct {
		name     string
		write    write
		existing *mvccpb.KeyValue
		needed   bool
		conflict bool
	}{
		{"new", put(t, testEndpoint(1, "n1")), nil, true, false},
		{"same", put(t, testEndpoint(1, "n1")), stored(testEndpoint(1, "n1")), false, false},
		{"changed", put(t, heavy), stored(testEndpoint(1, "n1")), true, false},
		{"same but disagreeing", put(t, testEndpoint(1, "n1")), stored(elsewhere), true, false},
		{"unparsable", put(t, testEndpoint(1, "n1")), &mvccpb.KeyValue{Value: []byte("x")}, true, false},
		{"free", put(t, testEndpoint(1, "n1")), stored(testEndpoint(1, "")), true, false},
		{"held", put(t, testEndpoint(1, "n2")), stored(testEndpoint(1, "n1")), false, true},
		{"held, for nobody", put(t, testEndpoint(1, "")), stored(testEndpoint(1, "n1")), false, true},
		{"held by an absent node", put(t, testEndpoint(1, "n2")), stored(testEndpoint(1, "absent")), true, false},
		{"remove nothing", remove(testEndpoint(1, "n1")), nil, false, false},
		{"remove own", remove(testEndpoint(1, "n1")), stored(testEndpoint(1, "n1")), true, false},
		{"remove free", remove(testEndpoint(1, "n1")), stored(testEndpoint(1, "")), true, false},
		{"remove anyone's", remove(testEndpoint(1, "")), stored(testEndpoint(1, "n1")), true, false},
		{"remove another's", remove(testEndpoint(1, "n2")), stored(testEndpoint(1, "n1")), false, true},
		{"remove an absent node's", remove(testEndpoint(1, "n2")), stored(testEndpoint(1, "absent")), false, true},
		{"remove unparsable", remove(testEndpoint(1, "n2")), &mvccpb.KeyValue{Value: []byte("x")}, true, false},
	}
	present := func(node string) bool { return node != "absent" }
	for _, tt := range tests {
		_, needed, err := decide(tt.write, tt.existing, present)
		if needed != tt.needed || (registry.KindOf(err) == registry.Conflict) != tt.conflict || (err != nil) != tt.conflict {
			t.Errorf("%s: got %v, %v", tt.name, needed, err)
		}
	}
}

func TestPlanGuardsEachStep(t *testing.T) {
	batch := []write{put(t, testEndpoint(1, "")), put(t, testEndpoint(2, "")), remove(testEndpoint(3, ""))}
	tx := &transaction{
		store: &Store{present: func(string) bool { return true }},
		found: map[string]*mvccpb.KeyValue{
			batch[1].key: {Value: batch[1].value, ModRevision: 5}, batch[2].key: {Value: batch[0].value, ModRevision: 6},
		},
	}
	d := tx.plan(&pending{ctx: t.Context(), batch: batch})
	if d.result.err != nil || d.result.written != 1 || d.result.removed != 1 || len(d.steps) != 2 ||
		d.steps[0].modRevision != 0 || d.steps[1].modRevision != 6 || d.steps[1].key != batch[2].key {
		t.Errorf("got %+v", d)
	}
}

func TestBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 2<<20), 0, 400).Draw(t, "sizes")
		if rapid.Bool().Draw(t, "small") {
			for i := range sizes {
				sizes[i] = sizes[i]%1000 + 1
			}
		}
		writes := make([]write, len(sizes))
		big := strings.Repeat("x", 2<<20)
		for i, n := range sizes {
			writes[i] = write{key: big[:n]}
		}
		var all []write
		for b := range batches(writes) {
			total := 0
			for _, w := range b {
				total += w.size()
			}
			if len(b) == 0 || len(b) > registry.MaxBatch || len(b) > 1 && total > maxBatchBytes {
				t.Fatalf("batch of %d writes and %d bytes", len(b), total)
			}
			all = append(all, b...)
		}
		if !slices.EqualFunc(all, writes, func(a, b write) bool { return a.key == b.key }) {
			t.Fatal("batches are not the writes in order")
		}
	})
}

// Whatever is taken when, a reader of the queue ends with what a reader of all
// events would know, never holding more than two events for a key.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue()
		want, got := map[registry.Key]uint32{}, map[registry.Key]uint32{}
		apply := func(known map[registry.Key]uint32, e registry.Event) {
			switch e.Kind {
			case registry.Reset:
				clear(known)
			case registry.Put:
				known[e.Endpoint.Key] = e.Endpoint.Weight
			case registry.Delete:
				delete(known, e.Endpoint.Key)
			}
		}
		drain := func() {
			events := q.take()
			if len(events) > 2*5+2 {
				t.Fatalf("%d events for 5 keys", len(events))
			}
			for _, e := range events {
				apply(got, e)
			}
		}
		kinds := []registry.EventKind{registry.Put, registry.Put, registry.Put, registry.Delete}
		for i := range rapid.IntRange(0, 100).Draw(t, "events") {
			switch rapid.IntRange(0, 9).Draw(t, "do") {
			case 0:
				drain()
			case 1: // a snapshot, as a follower tells it
				for _, e := range []registry.Event{{Kind: registry.Reset}, {Kind: registry.Synced}} {
					apply(want, e)
					q.put(e)
				}
			default:
				e := registry.Event{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Endpoint: testEndpoint(rapid.IntRange(1, 5).Draw(t, "key"), "")}
				e.Endpoint.Weight = uint32(i)
				apply(want, e)
				q.put(e)
			}
		}
		drain()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestTranslate(t *testing.T) {
	client := clientv3.NewCtxClient(context.Background())
	for err, kind := range map[error]registry.Kind{
		context.Canceled:                                       registry.Unavailable,
		context.DeadlineExceeded:                               registry.Unavailable,
		fmt.Errorf("x: %w", rpctypes.ErrNoLeader):              registry.Unavailable,
		rpctypes.ErrTimeout:                                    registry.Unavailable,
		rpctypes.ErrNoSpace:                                    registry.Unavailable,
		rpctypes.ErrTooManyRequests:                            registry.Unavailable,
		rpctypes.ErrPermissionDenied:                           registry.Denied,
		rpctypes.ErrAuthFailed:                                 registry.Denied,
		rpctypes.ErrInvalidAuthToken:                           registry.Denied,
		rpctypes.ErrRequestTooLarge:                            registry.Invalid,
		rpctypes.ErrTooManyOps:                                 registry.Internal,
		rpctypes.ErrLeaseNotFound:                              registry.NotFound,
		rpctypes.ErrCorrupt:                                    registry.Internal,
		status.Error(codes.Unavailable, "gone"):                registry.Unavailable,
		registry.Errorf(registry.Conflict, "held by n1"):       registry.Conflict,
		fmt.Errorf("x: %w", registry.Invalidf("ip", "is bad")): registry.Invalid,
	} {
		if got := translate("try", client, err); registry.KindOf(got) != kind || !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("%v: %s: %v, want %s", err, registry.KindOf(got), got, kind)
		}
	}
	if err := translate("try", client, nil); err != nil {
		t.Error(err)
	}
}
