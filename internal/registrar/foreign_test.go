package registrar_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// mirror writes a mirror of region b as its origin would.
type mirror struct {
	t      *testing.T
	client *clientv3.Client
	leases []clientv3.LeaseID
	// renewed is when the last keepalives began.
	renewed time.Time
}

const mirrorTTL = 4

func newMirror(t *testing.T, server *etcdtest.Server) *mirror {
	return &mirror{t: t, client: server.Client(t)}
}

// grant gives the mirror fresh leases: one for live, the rest for endpoints.
func (m *mirror) grant() {
	m.t.Helper()
	m.leases = nil
	for range 5 {
		m.renewed = time.Now()
		lease, err := m.client.Grant(m.t.Context(), mirrorTTL)
		fatal(m.t, err)
		m.leases = append(m.leases, lease.ID)
	}
}

func (m *mirror) put(key, value string, lease clientv3.LeaseID) {
	m.t.Helper()
	_, err := m.client.Put(m.t.Context(), key, value, clientv3.WithLease(lease))
	fatal(m.t, err)
}

func (m *mirror) state(phase mirrorv1.Phase) {
	m.t.Helper()
	value, err := proto.Marshal(&mirrorv1.State{Phase: phase, Checkpoint: 42})
	fatal(m.t, err)
	m.put(keyspace.StateKey("b"), string(value), clientv3.NoLease)
}

func (m *mirror) live() {
	m.t.Helper()
	m.put(keyspace.LiveKey("b"), "", m.leases[0])
}

// fill writes endpoints over all leases.
func (m *mirror) fill(n int) {
	m.t.Helper()
	for i := range n {
		e := plainEndpoint("api", i)
		e.Origin = registry.Origin{Region: "b", Cluster: "c9"}
		value, err := wire.Value(e)
		fatal(m.t, err)
		m.put(keyspace.Format(e.Key), string(value), m.leases[1+i%4])
	}
}

// keepAlive renews the leases until the function that it returns is called.
func (m *mirror) keepAlive() (stop func()) {
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second / 2)
		defer tick.Stop()
		for {
			renewed := time.Now()
			for _, lease := range m.leases {
				if _, err := m.client.KeepAliveOnce(ctx, lease); err != nil {
					return
				}
			}
			m.renewed = renewed
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (n *node) state(region string) *registryv1.Region {
	n.t.Helper()
	regions, err := n.client.Regions(n.t.Context())
	fatal(n.t, err)
	for _, r := range regions {
		if r.GetRegion() == region {
			return r
		}
	}
	return &registryv1.Region{}
}

func (n *node) becomes(region string, state registrar.State, endpoints uint32) {
	n.t.Helper()
	eventually(n.t, region+" becomes "+string(state), func() bool {
		r := n.state(region)
		return r.GetState() == string(state) && r.GetEndpoints() == endpoints
	})
}

// TestForeignRegion follows one region through its life in a real etcd: filled,
// shown, lost, and back.
func TestForeignRegion(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	m := newMirror(t, server)
	n := start(t, server, origin, nil).ready()
	watch, err := registryv1.NewRegistryServiceClient(n.raw()).Watch(t.Context())
	fatal(t, err)
	fatal(t, watch.Send(&registryv1.WatchRequest{}))
	_, err = watch.Recv()
	fatal(t, err)

	m.grant()
	m.state(mirrorv1.Phase_PHASE_SYNCING)
	m.live()
	stop := m.keepAlive()
	m.fill(40)
	n.becomes("b", registrar.Syncing, 0)
	m.state(mirrorv1.Phase_PHASE_COMPLETE)
	wantChanges(t, watch, 40, 0)
	n.becomes("b", registrar.Live, 40)
	if r := n.state("b"); r.GetRevision() != "42" {
		t.Errorf("region: %v", r)
	}

	stop()
	wantChanges(t, watch, 0, 40)
	if took := time.Since(m.renewed); took < mirrorTTL*time.Second {
		t.Errorf("withdrawn %v after the last renewal began", took)
	}
	n.becomes("b", registrar.Lapsed, 0)
	n.want("GET", "/metrics", "", 200, `aether_registrar_region_state{origin="b",state="lapsed"} 1`, `aether_registrar_region_withdrawals_total{cause="`)

	m.state(mirrorv1.Phase_PHASE_SYNCING)
	m.grant()
	m.live()
	defer m.keepAlive()()
	m.fill(40)
	n.becomes("b", registrar.Syncing, 0)
	m.state(mirrorv1.Phase_PHASE_COMPLETE)
	wantChanges(t, watch, 40, 0)
	n.becomes("b", registrar.Live, 40)
}

// wantChanges takes one message, which holds all of one version.
func wantChanges(t *testing.T, watch registryv1.RegistryService_WatchClient, puts, deletes int) {
	t.Helper()
	message, err := watch.Recv()
	fatal(t, err)
	for _, c := range message.GetChanges() {
		if c.GetDelete() != nil {
			deletes--
		} else {
			puts--
		}
	}
	if puts != 0 || deletes != 0 {
		t.Errorf("a message lacks %d puts and %d deletes of what one version changes", puts, deletes)
	}
}

// TestRestartDoesNotShowHalfARegion is case 12 with a registrar that is new.
func TestRestartDoesNotShowHalfARegion(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	m := newMirror(t, server)
	m.grant()
	m.live()
	defer m.keepAlive()()
	m.state(mirrorv1.Phase_PHASE_SYNCING)
	m.fill(10)
	n := start(t, server, origin, nil).ready()
	if got := n.list(); len(got) != 0 {
		t.Errorf("%d endpoints are shown", len(got))
	}
	m.state(mirrorv1.Phase_PHASE_COMPLETE)
	n.becomes("b", registrar.Live, 10)

	again := start(t, server, registry.Origin{Region: "a", Cluster: "c2"}, nil).ready()
	if got := again.list(); len(got) != 10 {
		t.Errorf("%d endpoints are shown by a registrar that is ready, want 10", len(got))
	}
}

// TestEtcdAwayWithdrawsNothing stops the local etcd for longer than the leases
// live.
func TestEtcdAwayWithdrawsNothing(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	m := newMirror(t, server)
	m.grant()
	m.state(mirrorv1.Phase_PHASE_COMPLETE)
	m.fill(10)
	m.live()
	stop := m.keepAlive()
	n := start(t, server, origin, nil).ready()
	n.becomes("b", registrar.Live, 10)
	stop()
	server.Stop()
	eventually(t, "the region is stale and old", func() bool {
		r := n.state("b")
		return r.GetState() == string(registrar.Stale) && r.GetAge().AsDuration() > (mirrorTTL+2)*time.Second && r.GetEndpoints() == 10
	})
	_, body := n.call("GET", "/v1/services/api/endpoints", "")
	if !strings.Contains(body, `"age":"`) {
		t.Errorf("endpoints without an age: %s", body)
	}
	server.Restart()
	n.becomes("b", registrar.Lapsed, 0)
}
