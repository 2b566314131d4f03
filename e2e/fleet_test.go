//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/netnstest"
	"github.com/aether-federation/aether/test/clients/clientstest"
)

const (
	// local is a service that every region has, remote one that region a lacks:
	// its clients call region b, the next.
	local  = "echo"
	remote = "shop"

	rate = 50 // calls per second of each client
	// callDeadline is long enough for a machine that is busy: with a second, calls
	// failed that had nothing to do with a fault.
	callDeadline = 5 * time.Second
	// silence is how long some clients suffer a connection that does not answer.
	silence = 2 * time.Second
)

// group is clients of each kind that do the same.
type group struct {
	name, service string
	silence       time.Duration
}

var (
	atHome = group{"own region", local, 0}
	abroad = group{"next region", remote, 0}
	// alert clients use gRPC's keepalive.
	alert  = group{"next region, keepalive " + silence.String(), remote, silence}
	groups = []group{atHome, abroad, alert}
)

// fleet is three regions, and clients in the first.
type fleet struct {
	t       *testing.T
	network *netnstest.Network
	ttl     time.Duration
	regions []*region
	// a, b and c are the regions; clients of both services run in a.
	a, b, c *region
	clients map[group][]*clientstest.Client
	// peer is a client of region a's etcd.
	peer *clientv3.Client
	// seen is how region a sees region b.
	seen *observer
}

// leaseTTL is the TTL of the run, AETHER_E2E_TTL.
func leaseTTL(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("AETHER_E2E_TTL")
	if text == "" {
		return 10 * time.Second
	}
	ttl, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return ttl
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, network: netnstest.New(t), ttl: leaseTTL(t), clients: map[group][]*clientstest.Client{}}
	f.a = newRegion(t, f.network, "a", local)
	f.b = newRegion(t, f.network, "b", local, remote)
	f.c = newRegion(t, f.network, "c", local, remote)
	f.regions, f.peer = []*region{f.a, f.b, f.c}, f.a.etcd.Client(t)
	for _, r := range f.regions {
		r.equip(f.regions, "--lease-ttl", f.ttl.String())
	}
	for _, r := range f.regions {
		r.start()
	}
	f.awaitWhole()
	for _, g := range groups {
		for _, kind := range clientstest.Kinds {
			f.clients[g] = append(f.clients[g], f.client(kind, g))
		}
	}
	f.seen = observe(t, f.a, "b")
	f.reach(atHome, f.a.backends...)
	f.reach(abroad, f.b.backends...)
	f.reach(alert, f.b.backends...)
	return f
}

func (f *fleet) client(kind clientstest.Kind, g group) *clientstest.Client {
	f.t.Helper()
	bootstrap := filepath.Join(f.t.TempDir(), "bootstrap.json")
	out, err := f.a.host.Command(binary, "xds", "bootstrap", "--registrar", f.a.addresses(),
		"--node", fmt.Sprintf("%s-%s", kind, g.service), "--zone", "a-z1", "--file", bootstrap).CombinedOutput()
	if err != nil {
		f.t.Fatalf("write bootstrap: %v: %s", err, out)
	}
	return programs.Client(f.t, clientstest.Options{
		Kind: kind, Target: "xds:///" + g.service, Rate: rate, Deadline: callDeadline, Silence: g.silence,
		Bootstrap: bootstrap, Run: f.a.host.Command,
	})
}

// awaitWhole waits until every registrar serves each region, live and with all of its
// backends healthy.
func (f *fleet) awaitWhole() time.Duration {
	f.t.Helper()
	return eventually(f.t, "every registrar serves everything", func() bool {
		for _, viewer := range f.regions {
			for i := range registrars {
				for _, r := range f.regions {
					if !whole(viewer, i, r) {
						return false
					}
				}
			}
		}
		return true
	})
}

func whole(viewer *region, i int, r *region) bool {
	state := viewer.standing(i, "/v1/regions", r.name).State
	if state != "live" && (viewer != r || state != "own") {
		return false
	}
	for _, service := range r.services {
		if viewer.healthy(i, service, r.name) != len(r.backends) {
			return false
		}
	}
	return true
}

// reach waits until the clients of a group are answered by those, each of them, and
// nobody else. It returns after how long each kind of client was.
func (f *fleet) reach(g group, some ...*clientstest.Backend) took {
	f.t.Helper()
	var want []string
	for _, b := range some {
		want = append(want, b.ID)
	}
	slices.Sort(want)
	begin := time.Now()
	arrived := took{}
	eventually(f.t, fmt.Sprintf("calls to the %s reach %v", g.name, want), func() bool {
		for _, c := range f.clients[g] {
			_, done := arrived[c.Kind]
			if !done && slices.Equal(slices.Sorted(maps.Keys(c.Recent(begin))), want) {
				arrived[c.Kind] = time.Since(begin)
			}
		}
		return len(arrived) == len(f.clients[g])
	})
	return arrived
}

// took is how long something took each kind of client.
type took map[clientstest.Kind]time.Duration

func (t took) String() string {
	var parts []string
	for _, kind := range clientstest.Kinds {
		parts = append(parts, fmt.Sprintf("%s %v", kind, t[kind].Round(10*time.Millisecond)))
	}
	return strings.Join(parts, ", ")
}

// isolate does that to the packets between region b and the others.
func (f *fleet) isolate(what func(from, to *netnstest.Host)) {
	for _, o := range []*region{f.a, f.c} {
		what(f.b.host, o.host)
		what(o.host, f.b.host)
	}
}

// failed counts the failed calls of a group that ended after then, by kind of
// client.
func (f *fleet) failed(g group, then time.Time) map[clientstest.Kind]int {
	out := map[clientstest.Kind]int{}
	for _, c := range f.clients[g] {
		out[c.Kind] = len(c.Since(then).Failed)
	}
	return out
}

// times says when the failed calls of a group began, after then.
func (f *fleet) times(g group, then time.Time) string {
	var b strings.Builder
	for _, c := range f.clients[g] {
		for _, failure := range c.Since(then).Failed {
			fmt.Fprintf(&b, "\n%s %v %v: %s", c.Kind, time.UnixMilli(failure.Started).Sub(then).Round(time.Millisecond), failure.Code, failure.Text)
		}
	}
	return b.String()
}

// lastCall is when the last call to one of the backends ended, or one failed that
// began after then, whichever is later; zero if there was none.
func (f *fleet) lastCall(g group, then time.Time, dead []*clientstest.Backend) time.Time {
	last := then
	for _, c := range f.clients[g] {
		for _, b := range dead {
			if at := c.LastFrom(b.ID); at.After(last) {
				last = at
			}
		}
		for _, failure := range c.Since(then).Failed {
			if at := time.UnixMilli(failure.Started); at.After(last) {
				last = at
			}
		}
	}
	return last
}

// rollingRestart restarts everything in a region, one after the other, as an upgrade
// does.
func (f *fleet) rollingRestart(r *region) {
	f.t.Helper()
	for i := range r.etcd.Members() {
		r.etcd.Member(i).Restart()
	}
	for i, p := range r.registrars {
		p.stop(syscall.SIGTERM)
		p.start()
		r.awaitReady(i)
	}
	r.agent.stop(syscall.SIGHUP) // which keeps all registered
	r.agent.start()
	for _, b := range r.backends {
		r.drain(nil, b)
		f.quiet(b)
		b.Stop()
		b.Start()
		r.drain([]string{"--undo"}, b)
		f.awaitWhole()
	}
}

// quiet waits until no client reaches a backend.
func (f *fleet) quiet(b *clientstest.Backend) {
	f.t.Helper()
	begin := time.Now()
	for _, c := range slices.Concat(f.clients[atHome], f.clients[abroad], f.clients[alert]) {
		eventually(f.t, fmt.Sprintf("the %s client does not call %s", c.Kind, b.ID), func() bool {
			recent := c.Recent(begin)
			return recent != nil && recent[b.ID] == 0
		})
	}
}

// observer follows how the registrars of a region see another one.
type observer struct {
	mu      sync.Mutex
	changes []change
}

// change is a state that one registrar began to show.
type change struct {
	at        time.Time
	registrar int
	state     string
}

// observe asks each registrar of a region, every few milliseconds, until the test
// ends.
func observe(t *testing.T, viewer *region, origin string) *observer {
	t.Helper()
	o := &observer{}
	done := make(chan struct{})
	var polls sync.WaitGroup
	for i := range registrars {
		polls.Go(func() { o.follow(viewer, i, origin, done) })
	}
	t.Cleanup(func() {
		close(done)
		polls.Wait()
	})
	return o
}

func (o *observer) follow(viewer *region, i int, origin string, done <-chan struct{}) {
	tick := time.NewTicker(glance)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		state := viewer.standing(i, "/v1/regions", origin).State
		if state == "" || state == last { // it may be restarting
			continue
		}
		last = state
		o.mu.Lock()
		o.changes = append(o.changes, change{time.Now(), i, state})
		o.mu.Unlock()
	}
}

// withdrawn returns when each of the registrars that withdrew the region after then
// did so.
func (o *observer) withdrawn(then time.Time) []time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := map[int]time.Time{}
	for _, c := range o.changes {
		if _, seen := first[c.registrar]; !seen && c.state == "lapsed" && c.at.After(then) {
			first[c.registrar] = c.at
		}
	}
	return slices.SortedFunc(maps.Values(first), time.Time.Compare)
}

// awaitWithdrawal waits until each registrar of region a has withdrawn region b, and
// returns when the first and the last did.
func (f *fleet) awaitWithdrawal(then time.Time) (first, last time.Time) {
	f.t.Helper()
	eventually(f.t, "region a has withdrawn region b", func() bool { return len(f.seen.withdrawn(then)) == registrars })
	at := f.seen.withdrawn(then)
	return at[0], at[len(at)-1]
}

// counts formats counts by kind, in the order of Kinds.
func counts(by map[clientstest.Kind]int) string {
	var parts []string
	for _, kind := range clientstest.Kinds {
		parts = append(parts, fmt.Sprintf("%s %d", kind, by[kind]))
	}
	return strings.Join(parts, ", ")
}
