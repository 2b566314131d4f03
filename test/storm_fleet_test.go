package test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/test/crew"
)

// The times of a storm's fleet. Several brief faults, with the election of another
// replicator between them, last less than 0.8 TTL together.
const (
	stormTTL      = 15 * time.Second
	stormPresence = 2 * time.Second
	stormGrace    = 8 * time.Second
)

const (
	inRegionA, inRegionB = 40, 10
	// groups of clients of one region, each with a link of its own to each
	// registrar.
	groups = 5
)

// stormFleet is two regions of one cluster each: one over three etcds with two
// registrars, one over one etcd with one.
type stormFleet struct {
	t *testing.T
	// newClient makes a client, of whatever kind, that does not run yet.
	newClient func(*testing.T, crew.Config) client
	regions   []*stormRegion
	// stable are the lines of what each client has and never changes.
	stable map[*hand][]string
	// losses that clients told of and that are not judged yet.
	losses []loss
}

type stormRegion struct {
	name    string
	cluster *etcdtest.Cluster
	// etcd is a client of it that no fault befalls.
	etcd *clientv3.Client
	// etcds are the cluster's members as parts.
	etcds      []*part
	registrars []*station
	crew       []*hand
	// toPeer are the links of its mirror, to each of the peer's etcds.
	toPeer []*line
}

// station is a registrar with its links.
type station struct {
	*part
	*registrar
	toEtcd []*line
	// clients are the links from each group of clients.
	clients []*line
}

// registrarProcess is a registrar as a process.
type registrarProcess struct{ *registrar }

func (p registrarProcess) Launch() { p.launch() }
func (p registrarProcess) Kill()   { p.kill() }

func (p registrarProcess) Stop() {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	if code := p.stop(); code != 0 {
		p.t.Errorf("registrar %s: exit code %d after SIGTERM, want 0", p.http, code)
	}
}

func (p registrarProcess) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal registrar %s: %v", p.http, err)
	}
}

// hand is a client as a part of the fleet.
type hand struct {
	*part
	client client
	region string
	node   string
	group  int
}

// newStormFleet starts the etcds and the registrars, and makes the clients.
func newStormFleet(t *testing.T, newClient func(*testing.T, crew.Config) client) *stormFleet {
	t.Helper()
	f := &stormFleet{t: t, newClient: newClient, stable: map[*hand][]string{}}
	for i, members := range []int{3, 1} {
		f.regions = append(f.regions, f.newRegion(string(rune('a'+i)), members))
	}
	for i, r := range f.regions {
		peer := f.regions[1-i]
		r.toPeer = f.lines(peer.cluster.Endpoints())
		for range []int{2, 1}[i] {
			r.registrars = append(r.registrars, f.newStation(r, peer.name))
		}
		for n := range []int{inRegionA, inRegionB}[i] {
			r.crew = append(r.crew, f.newHand(r, n))
		}
	}
	for _, r := range f.regions {
		for _, s := range r.registrars {
			s.start()
		}
	}
	return f
}

func (f *stormFleet) newRegion(name string, members int) *stormRegion {
	f.t.Helper()
	r := &stormRegion{name: name, cluster: etcdtest.StartCluster(f.t, members)}
	r.etcd = r.cluster.Client(f.t)
	for i := range members {
		r.etcds = append(r.etcds, &part{process: r.cluster.Member(i), name: fmt.Sprintf("etcd %s%d", name, i)})
	}
	return r
}

func (f *stormFleet) lines(to []string) []*line {
	f.t.Helper()
	var all []*line
	for _, address := range to {
		all = append(all, &line{Link: wantest.New(f.t, address, 0)})
	}
	return all
}

// addresses lists where lines begin, joined as flags take them.
func addresses(lines []*line) string {
	out := ""
	for i, w := range lines {
		if i > 0 {
			out += ","
		}
		out += w.Address()
	}
	return out
}

func (f *stormFleet) newStation(r *stormRegion, peer string) *station {
	f.t.Helper()
	s := &station{toEtcd: f.lines(r.cluster.Endpoints())}
	s.registrar = newRegistrar(f.t, "--region", r.name, "--cluster-name", "c1", "--etcd-endpoints", addresses(s.toEtcd),
		"--peer-etcd", peer+"="+addresses(r.toPeer), "--lease-ttl", stormTTL.String(),
		"--presence-ttl", stormPresence.String(), "--sweep-grace", stormGrace.String())
	s.part = &part{process: registrarProcess{s.registrar}, name: fmt.Sprintf("registrar %s%d", r.name, len(r.registrars))}
	for range groups {
		s.clients = append(s.clients, f.lines([]string{s.grpc})...)
	}
	return s
}

func (f *stormFleet) newHand(r *stormRegion, number int) *hand {
	f.t.Helper()
	c := crew.Config{
		Origin: registry.Origin{Region: r.name, Cluster: "c1"}, Number: number,
		ReportEvery: 500 * time.Millisecond, ChangeEvery: 2 * time.Second,
	}
	group := number % groups
	for i := range r.registrars {
		s := r.registrars[(number/groups+i)%len(r.registrars)]
		c.Registrars = append(c.Registrars, s.clients[group].Address())
	}
	m := f.newClient(f.t, c)
	return &hand{part: &part{process: m, name: "node " + r.name + "/" + c.Node()}, client: m, region: r.name, node: c.Node(), group: group}
}

// launchCrew starts all clients.
func (f *stormFleet) launchCrew() {
	for _, h := range f.crew() {
		h.Launch()
	}
}

// crew are the clients of all regions.
func (f *stormFleet) crew() []*hand {
	var all []*hand
	for _, r := range f.regions {
		all = append(all, r.crew...)
	}
	return all
}

func (f *stormFleet) stations() []*station {
	var all []*station
	for _, r := range f.regions {
		all = append(all, r.registrars...)
	}
	return all
}
