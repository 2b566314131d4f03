package replicator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry/keyspace"
)

// kind is one kind of fault.
type kind struct {
	name string
	// touches are the parts that no other fault of the round may touch.
	touches string
	// blocks: keepalives may not arrive while it lasts.
	blocks bool
	// members the peer must have; 0: any number.
	members int
	// begin starts it and returns what ends it; nil if it ends by itself.
	begin func(m *model, arg int) (end func())
}

const (
	partLink, partPeer, partOrigin = "l", "p", "o"
	partReplicator, partRequests   = "r", "q"
	partAdmin, partCompaction      = "a", "c"
	everyPart                      = "lporqac"
)

// kinds are the faults that there are.
var kinds = []kind{
	{name: "link cut", touches: partLink, blocks: true, begin: eachLink((*wantest.Link).Cut, (*wantest.Link).Heal)},
	{name: "link down", touches: partLink, blocks: true, begin: eachLink((*wantest.Link).Down, (*wantest.Link).Up)},
	{name: "link reset", touches: partLink, begin: eachLink((*wantest.Link).Reset, (*wantest.Link).Reset)},
	{name: "link delayed", touches: partLink, begin: delayLinks},
	{name: "origin's link cut", touches: partLink, blocks: true, begin: cutOrigin},
	{name: "peer stopped", touches: partPeer, blocks: true, begin: stopPeer},
	{name: "peer killed", touches: partPeer, blocks: true, begin: killPeer},
	{name: "peer restored", touches: partPeer + partLink, begin: restorePeer},
	{name: "peer full", touches: partPeer + partCompaction, begin: fillPeer},
	// A leader that was stopped for longer than the TTL revokes leases when it wakes,
	// before it learns that another leads.
	{name: "member stopped", touches: partPeer, members: 3, blocks: true, begin: stopMember},
	{name: "member killed", touches: partPeer, members: 3, begin: killMember},
	{name: "leader moved", touches: partPeer, members: 3, begin: moveLeader},
	{name: "origin stopped", touches: partOrigin, blocks: true, begin: stopOrigin},
	{name: "origin killed", touches: partOrigin, blocks: true, begin: killOrigin},
	{name: "origin restored", touches: partOrigin + partLink, begin: restoreOrigin},
	{name: "origin set far back", touches: everyPart, begin: setOriginBack},
	{name: "replicator restarted", touches: partReplicator, blocks: true, begin: restart},
	{name: "replicator killed", touches: partReplicator + partLink, blocks: true, begin: killReplicator},
	// Without an election whoever was fenced stands by until the other's lease is
	// no longer renewed: that is a time without keepalives too.
	{name: "second replicator", touches: partReplicator, blocks: true, begin: addReplicator},
	{name: "replicator frozen", touches: partReplicator + partLink, blocks: true, begin: freezeReplicator},
	{name: "requests late", touches: partRequests, blocks: true, begin: makeLate},
	{name: "lease revoked", touches: partAdmin, begin: revokeLeases},
	{name: "keys deleted", touches: partAdmin, begin: deleteKeys},
	{name: "state forgotten", touches: partAdmin, begin: forgetState},
	{name: "origin compacted", touches: partCompaction, begin: compactOrigin},
	{name: "peer compacted", touches: partCompaction, begin: compactPeer},
}

// fault is one that happens: when, for how long, and a number to choose by.
type fault struct {
	kind      kind
	at, lasts time.Duration
	arg       int
	heal      func()
	began     time.Time
}

func (f *fault) begin(m *model) {
	f.began = time.Now()
	f.heal = f.kind.begin(m, f.arg)
}

func (f *fault) end(m *model) {
	if f.heal != nil {
		f.heal()
	}
	if f.kind.blocks {
		m.trouble(f.began)
	}
}

// round is what happens between two looks at whether the mirror equals the
// origin.
type round struct {
	faults []*fault
	lasts  time.Duration
	// pace is the time between two changes of the origin, 0 for none.
	pace time.Duration
	arg  int
}

// step is the beginning or the end of a fault.
type step struct {
	at     time.Duration
	begins bool
	fault  *fault
}

// schedule draws a round. It depends on rng, the number of members and the TTL
// alone.
func schedule(rng *rand.Rand, members int, ttl time.Duration) round {
	paces := []time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}
	r := round{pace: paces[rng.IntN(len(paces))], arg: rng.IntN(1 << 20)}
	if rng.IntN(10) == 0 {
		r.lasts = ttl * 5 / 4 // nothing at all happens, and nothing may expire
		return r
	}
	touched := ""
	for range 1 + rng.IntN(4) {
		k := kinds[rng.IntN(len(kinds))]
		u := rng.Float64()
		f := &fault{kind: k, arg: rng.IntN(1 << 20), at: time.Duration(rng.Int64N(int64(3 * time.Second)))}
		f.lasts = 100*time.Millisecond + time.Duration(u*u*1.5*float64(ttl))
		if strings.ContainsAny(touched, k.touches) || k.members != 0 && k.members != members {
			continue
		}
		touched += k.touches
		r.faults = append(r.faults, f)
		r.lasts = max(r.lasts, f.at+f.lasts)
	}
	return r
}

// steps returns the beginnings and ends of all faults, in order.
func (r round) steps() []step {
	var steps []step
	for _, f := range r.faults {
		steps = append(steps, step{f.at, true, f}, step{f.at + f.lasts, false, f})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	return steps
}

func (r round) String() string {
	var names []string
	for _, f := range r.faults {
		names = append(names, fmt.Sprintf("%s at %.1f s for %.1f s", f.kind.name, f.at.Seconds(), f.lasts.Seconds()))
	}
	return fmt.Sprintf("%.1f s, a change each %v: %s", r.lasts.Seconds(), r.pace, strings.Join(names, ", "))
}

func eachLink(begin, end func(*wantest.Link)) func(*model, int) func() {
	return func(m *model, _ int) func() {
		links := m.newest().toPeer
		for _, l := range links {
			begin(l)
		}
		return func() {
			for _, l := range links {
				end(l)
			}
		}
	}
}

func delayLinks(m *model, arg int) func() {
	rtt := time.Duration(10+arg%300) * time.Millisecond
	return eachLink(func(l *wantest.Link) { l.Delay(rtt) }, (*wantest.Link).Prompt)(m, arg)
}

func cutOrigin(m *model, _ int) func() {
	link := m.newest().toOrigin
	link.Cut()
	return link.Heal
}

func stopPeer(m *model, _ int) func() {
	m.peer.Signal(syscall.SIGSTOP)
	return func() { m.peer.Signal(syscall.SIGCONT) }
}

func killPeer(m *model, _ int) func() {
	m.peer.Kill()
	return m.peer.Restart
}

func stopMember(m *model, arg int) func() {
	member := m.peer.Member(arg % 3)
	member.Signal(syscall.SIGSTOP)
	return func() { member.Signal(syscall.SIGCONT) }
}

func killMember(m *model, arg int) func() {
	member := m.peer.Member(arg % 3)
	member.Kill()
	return member.Restart
}

func moveLeader(m *model, _ int) func() {
	m.peer.MoveLeader()
	return nil
}

func stopOrigin(m *model, _ int) func() {
	m.origin.Signal(syscall.SIGSTOP)
	return func() { m.origin.Signal(syscall.SIGCONT) }
}

func killOrigin(m *model, _ int) func() {
	m.origin.Kill()
	return m.origin.Restart
}

// unlinked calls f while no replicator reaches anything.
func (m *model) unlinked(f func()) {
	defer m.trouble(time.Now())
	for _, p := range m.replicators {
		for _, l := range p.links() {
			l.Down()
		}
	}
	f()
	for _, p := range m.replicators {
		for _, l := range p.links() {
			l.Up()
		}
	}
}

// head returns an etcd's revision.
func (m *model) head(c *clientv3.Client) int64 {
	m.t.Helper()
	var rev int64
	eventually(m.t, "read the revision", func() string {
		got, err := c.Get(m.t.Context(), "/", clientv3.WithCountOnly())
		if err != nil {
			return err.Error()
		}
		rev = got.Header.Revision
		return ""
	})
	return rev
}

// interrupted makes a copy of an etcd, which is down for that time.
func (m *model) interrupted(of *etcdtest.Cluster) *etcdtest.ClusterBackup {
	defer m.trouble(time.Now())
	return of.Backup()
}

func restorePeer(m *model, _ int) func() {
	backup := m.interrupted(m.peer)
	m.mark(m.to, m.atPeer) // so that all that the backup holds was seen
	return func() {
		defer backup.Remove()
		m.unlinked(func() {
			m.late.forget()
			m.atPeer.stop()
			backup.Restore()
			rev := m.head(m.to)
			m.mu.Lock()
			m.pending = append(m.pending, sighting{at: time.Now(), rev: rev})
			m.mu.Unlock()
			m.history.tell("peer restored to %d", rev)
			m.watchPeer(rev)
		})
	}
}

func restoreOrigin(m *model, _ int) func() {
	m.writer.pause()
	backup := m.interrupted(m.origin)
	m.mark(m.from, m.atOrigin)
	m.writer.resume()
	return func() {
		m.writer.pause()
		defer m.writer.resume()
		m.restore(backup)
	}
}

// setOriginBack restores an origin from a backup without most of its keys.
func setOriginBack(m *model, _ int) func() {
	ctx := m.t.Context()
	m.writer.pause()
	keep := m.key(30)
	m.writer.commit(ctx, clientv3.OpDelete(keep, clientv3.WithRange(clientv3.GetPrefixRangeEnd(m.prefix))))
	backup := m.interrupted(m.origin)
	m.writer.fill(ctx, 100, 500)
	m.waitMirrored()
	return func() {
		defer m.writer.resume()
		m.restore(backup)
	}
}

// restore puts an origin's backup in place, while nobody writes.
func (m *model) restore(backup interface {
	Restore()
	Remove()
},
) {
	defer backup.Remove()
	m.unlinked(func() {
		m.mark(m.from, m.atOrigin)
		m.atOrigin.stop()
		had, err := content(m.t.Context(), m.from, m.prefix)
		if err != nil {
			m.t.Fatal(err)
		}
		m.before = len(had)
		began := time.Now()
		backup.Restore()
		rev := m.head(m.from)
		has, err := content(m.t.Context(), m.from, m.prefix)
		if err != nil {
			m.t.Fatal(err)
		}
		values := map[string]string{}
		for key, kv := range has {
			values[key] = short(kv.Value)
		}
		m.mu.Lock()
		m.truth.restored(values, rev, began)
		m.mu.Unlock()
		m.restores++
		m.history.tell("origin restored to %d, %d keys of %d", rev, len(has), len(had))
		m.watchOrigin(rev)
	})
}

func restart(m *model, _ int) func() {
	m.stopReplicator(m.newest())
	return func() { m.startReplicator() }
}

// killReplicator ends one so that nothing of its orderly end reaches anybody.
func killReplicator(m *model, _ int) func() {
	p := m.newest()
	for _, l := range p.links() {
		l.Down()
	}
	m.stopReplicator(p)
	return func() { m.startReplicator() }
}

func addReplicator(m *model, _ int) func() {
	m.startReplicator()
	return nil
}

// freezeReplicator keeps one from its peer while another takes over, and then
// lets it go on with what it has under way.
func freezeReplicator(m *model, _ int) func() {
	p := m.newest()
	for _, l := range p.toPeer {
		l.Cut()
	}
	m.startReplicator()
	return func() {
		for _, l := range p.toPeer {
			l.Heal()
		}
	}
}

func makeLate(m *model, arg int) func() {
	m.late.start(1 + arg%40)
	return m.late.stop
}

func compactOrigin(m *model, _ int) func() {
	m.compact(m.from, m.atOrigin)
	return func() { m.compact(m.from, m.atOrigin) }
}

func compactPeer(m *model, _ int) func() {
	m.compact(m.to, m.atPeer)
	return func() { m.compact(m.to, m.atPeer) }
}

func forgetState(m *model, _ int) func() {
	ctx, cancel := m.shortly()
	defer cancel()
	_, err := m.to.Delete(ctx, keyspace.StateKey("a"))
	m.history.tell("state deleted: %v", err)
	return nil
}
