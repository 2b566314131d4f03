package registrar_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/replicator"
)

// replicate mirrors store's region into the etcd to until the function that it
// returns is called.
func replicate(t *testing.T, store *etcd.Store, to *etcdtest.Server) (stop func()) {
	t.Helper()
	r := &replicator.Replicator{
		Source: store, LeaseTTLSeconds: mirrorTTL, Log: slog.New(slog.DiscardHandler),
		Peers: []replicator.Peer{{Region: "a", Endpoints: []string{to.Endpoint()}}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-ended
		}
	}
	t.Cleanup(stop)
	return stop
}

// TestReplicatedRegion is a region as the replicator mirrors it: its watchers
// see it come, change, go and return, each in one step.
func TestReplicatedRegion(t *testing.T) {
	t.Parallel()
	local, remote := etcdtest.Start(t), etcdtest.Start(t)
	store, err := etcd.New(etcd.Config{Client: remote.Client(t), Origin: registry.Origin{Region: "b", Cluster: "c9"}})
	fatal(t, err)
	var endpoints []registry.Endpoint
	for i := range 300 {
		endpoints = append(endpoints, plainEndpoint("api", i))
	}
	_, err = store.Register(t.Context(), endpoints)
	fatal(t, err)

	n := start(t, local, origin, nil).ready()
	watch, err := registryv1.NewRegistryServiceClient(n.raw()).Watch(t.Context())
	fatal(t, err)
	fatal(t, watch.Send(&registryv1.WatchRequest{}))
	_, err = watch.Recv()
	fatal(t, err)

	stop := replicate(t, store, local)
	wantChanges(t, watch, 300, 0)
	n.becomes("b", registrar.Live, 300)
	_, _, err = store.Unregister(t.Context(), []registry.Claim{{Key: endpoints[0].Key}})
	fatal(t, err)
	wantChanges(t, watch, 0, 1)

	stop() // and a successor within the TTL: nobody sees it
	stop = replicate(t, store, local)
	_, err = store.Register(t.Context(), []registry.Endpoint{plainEndpoint("api", 0)})
	fatal(t, err)
	wantChanges(t, watch, 1, 0)

	// What is on a lease of its own region comes and lapses like anything else.
	_, err = store.RegisterFor(t.Context(), 5*time.Second, []registry.Endpoint{plainEndpoint("api", 300)})
	fatal(t, err)
	wantChanges(t, watch, 1, 0)
	wantChanges(t, watch, 0, 1)

	stopped := time.Now()
	stop()
	wantChanges(t, watch, 0, 300)
	if took := time.Since(stopped); took < mirrorTTL*time.Second {
		t.Errorf("withdrawn %v after the last renewal", took)
	}
	n.becomes("b", registrar.Lapsed, 0)

	replicate(t, store, local)
	wantChanges(t, watch, 300, 0)
	n.becomes("b", registrar.Live, 300)
}
