package mirrors

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/replicator"
)

// start runs the mirrors of one registrar of region a until stop.
func start(t *testing.T, own, peer *etcdtest.Server, cluster string) (m *Mirrors, stop func()) {
	t.Helper()
	origin := registry.Origin{Region: "a", Cluster: cluster}
	store, err := etcd.New(etcd.Config{Client: own.Client(t), Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	m, err = New(Config{
		Origin: origin, Source: store, LeaseTTL: 6 * time.Second, Log: slog.New(slog.DiscardHandler),
		Peers: []replicator.Peer{{Region: "b", Endpoints: []string{peer.Endpoint()}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("mirrors ended with %v", err)
		}
	}
	t.Cleanup(stop)
	return m, stop
}

// await waits until m says that its peer is in that state with that leader.
func await(t *testing.T, m *Mirrors, state, leader string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		peers, err := m.Peers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(peers) == 1 && peers[0].State == state && peers[0].Leader == leader {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("peers are %v, want b %s by %s", peers, state, leader)
		}
	}
}

// TestOneMirrorsAndBothTell: the second takes over at once when the first ends.
func TestOneMirrorsAndBothTell(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	own, peer := etcdtest.Start(t), etcdtest.Start(t)
	first, stop := start(t, own, peer, "a1")
	await(t, first, "live", first.name)
	second, _ := start(t, own, peer, "a2")
	await(t, second, "live", first.name)

	key := keyspace.RegionPrefix("a") + "k"
	if _, err := own.Client(t).Put(t.Context(), key, "v"); err != nil {
		t.Fatal(err)
	}
	stop()
	await(t, second, "live", second.name)
	await(t, first, "live", second.name)
	got, err := peer.Client(t).Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || got.Kvs[0].Version != 1 {
		t.Errorf("the peer holds %v, want the key, written once", got.Kvs)
	}
}

func TestNobodyLeads(t *testing.T) {
	own := etcdtest.Start(t)
	store, err := etcd.New(etcd.Config{Client: own.Client(t), Origin: registry.Origin{Region: "a", Cluster: "a1"}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Origin: registry.Origin{Region: "a", Cluster: "a1"}, Source: store, LeaseTTL: 6 * time.Second,
		Peers: []replicator.Peer{{Region: "b", Endpoints: []string{"127.0.0.1:1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, m, "standby", "")
}

func TestPublicationSurvivesItsEncoding(t *testing.T) {
	since := time.Now().Add(-time.Hour).UTC()
	p := publication{Since: since, Peer: &registryv1.Peer{
		Region: "b", Leader: "x", State: "live", Lag: durationpb.New(time.Second), Keys: 3, Checkpoint: "7",
	}}
	value, err := p.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(value)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if at := got.at(since.Add(2 * time.Hour)); at.Since.AsDuration() != 2*time.Hour {
		t.Errorf("since %v, want 2h", at.Since.AsDuration())
	}
	if _, err := decode("host:1"); err == nil {
		t.Error("a value that is no publication was accepted")
	}
}

func TestWorthTelling(t *testing.T) {
	of := func(state, checkpoint string) publication {
		return publication{Peer: &registryv1.Peer{State: state, Checkpoint: checkpoint}}
	}
	tests := []struct {
		last, now publication
		age       time.Duration
		want      bool
	}{
		{of("live", "1"), of("live", "1"), time.Hour, false},
		{of("live", "1"), of("full", "1"), 0, true},
		{of("live", "1"), of("live", "2"), time.Second, false},
		{of("live", "1"), of("live", "2"), republishAfter, true},
	}
	for _, tt := range tests {
		if got := worthTelling(tt.last, tt.now, tt.age); got != tt.want {
			t.Errorf("%v after %v, %v later: %v, want %v", tt.now.Peer, tt.last.Peer, tt.age, got, tt.want)
		}
	}
}

func TestErrorOfBeforeIsNotShown(t *testing.T) {
	then := time.Unix(1000, 0)
	for _, tt := range []struct {
		state replicator.State
		since time.Time
		want  string
	}{
		{replicator.StateLive, then.Add(time.Second), ""},
		{replicator.StateLive, then.Add(-time.Second), "broken"},
		{replicator.StateLive, then, "broken"},
		{replicator.StateConnecting, then.Add(time.Second), "broken"},
	} {
		s := replicator.PeerStatus{State: tt.state, Since: tt.since, LastError: "broken", LastErrorAt: then}
		if got := (&Mirrors{}).message(s).GetLastError(); got != tt.want {
			t.Errorf("%s since %v: %q, want %q", tt.state, tt.since, got, tt.want)
		}
	}
}
