package replicator

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/keyspace"
)

// The environment of TestModel: how long it goes on with one seed, how many
// seeds, or the one seed to do again.
const (
	soakVariable  = "AETHER_SOAK"
	seedsVariable = "AETHER_SEEDS"
	seedVariable  = "AETHER_SEED"
)

// slow is how long it may take until the mirror equals the origin without a word.
const slow = 12 * time.Second

// TestModel makes random changes to an origin and random faults around its
// mirror, and checks all along that no key shows an older version after a newer
// one, that nobody writes or deletes what is not his, that a checkpoint is true,
// and, after each round of faults, that the mirror equals the origin.
func TestModel(t *testing.T) {
	lasts := 8 * time.Second
	if text := os.Getenv(soakVariable); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", soakVariable, err)
		}
	}
	for _, seed := range modelSeeds(t) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { runModel(t, seed, lasts) })
	}
}

func modelSeeds(t *testing.T) []uint64 {
	t.Helper()
	if text := os.Getenv(seedVariable); text != "" {
		return []uint64{parse(t, seedVariable, text)}
	}
	if os.Getenv(seedsVariable) == "" {
		return []uint64{1, 3} // the same ones each time, when nobody asks for more
	}
	seeds := []uint64{1}
	for range parse(t, seedsVariable, os.Getenv(seedsVariable)) - 1 {
		seeds = append(seeds, rand.Uint64N(1e9))
	}
	return seeds
}

func parse(t *testing.T, name, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// model is one run: an origin, a peer, replicators between them, and what is
// known of all of them.
type model struct {
	*rig
	origin, peer *etcdtest.Cluster
	history      *history
	writer       *writer
	late         *lateness
	// replicators that run, the newest last, and how many there have been.
	replicators []*process
	last        *process
	started     int

	mu      sync.Mutex
	truth   *truth
	excuses excuses
	checker *checker
	pending []sighting
	// the watches on both sides.
	atOrigin, atPeer *observer
	// restores of the origin, and how many keys it had before the last.
	restores, before int
	accepted         bool
	sum              summary
}

// summary is what a run was made of.
type summary struct {
	rounds, sightings int
	faults            map[string]int
	worst             time.Duration
	worstRound        int
}

func runModel(t *testing.T, seed uint64, lasts time.Duration) {
	noLeaks(t)
	m := newModel(t, seed)
	t.Logf("seed %d: TTL %d s, %d members; again with %s=%d", seed, m.ttl, m.peer.Members(), seedVariable, seed)
	t.Cleanup(func() {
		if t.Failed() && !m.history.printed {
			m.history.print(t, "it failed")
		}
		if t.Failed() {
			t.Logf("do it again with %s=%d", seedVariable, seed)
		}
	})
	m.startReplicator()
	m.converge("at first")
	for begun := time.Now(); time.Since(begun) < lasts && !t.Failed(); m.sum.rounds++ {
		rng := rand.New(rand.NewPCG(seed, uint64(m.sum.rounds)))
		m.round(schedule(rng, m.peer.Members(), time.Duration(m.ttl)*time.Second))
	}
	m.writer.pause()
	t.Logf("seed %d: %d rounds, %d changes of the origin, %d events on the peer, equal again after %v at worst (round %d), faults %v",
		seed, m.sum.rounds, m.writer.seq, m.sum.sightings, m.sum.worst.Round(time.Millisecond), m.sum.worstRound, m.sum.faults)
}

func newModel(t *testing.T, seed uint64) *model {
	rng := rand.New(rand.NewPCG(seed, 1<<63))
	m := &model{
		rig:     &rig{t: t, prefix: keyspace.RegionPrefix("a"), ttl: []int64{6, 10}[rng.IntN(2)]},
		history: newHistory(), truth: newTruth(), late: newLateness(seed),
	}
	m.sum.faults = map[string]int{}
	m.origin = etcdtest.StartCluster(t, 1)
	m.peer = etcdtest.StartCluster(t, []int{1, 3}[rng.IntN(2)], "--quota-backend-bytes", fmt.Sprint(24<<20))
	m.from, m.to = m.origin.Client(t), m.peer.Client(t)
	m.excuses = excuses{ttl: time.Duration(m.ttl) * time.Second, revs: map[int64]bool{}, keys: map[string]time.Time{}, leases: map[int64]bool{}}
	m.checker = newChecker(m.truth, &m.excuses, "a")
	m.late.model = m
	m.watchOrigin(0)
	m.watchPeer(0)
	m.writer = newWriter(m, seed)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.writer.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		for len(m.replicators) > 0 {
			m.stopReplicator(m.replicators[0])
		}
		m.late.wait()
		m.atOrigin.stop()
		m.atPeer.stop()
	})
	return m
}

// round lets faults happen at their times, ends them all, and waits until the
// mirror equals the origin.
func (m *model) round(r round) {
	m.history.tell("round %d: %s", m.sum.rounds, r)
	m.accepted, m.checker.unmade, m.before = false, 0, 0
	m.writer.pace(r.pace)
	begun := time.Now()
	for _, step := range r.steps() {
		if !m.waitUntil(begun.Add(step.at)) {
			return
		}
		if step.begins {
			m.sum.faults[step.fault.kind.name]++
			m.history.tell("%s begins", step.fault.kind.name)
			step.fault.begin(m)
		} else {
			step.fault.end(m)
			m.history.tell("%s ended", step.fault.kind.name)
		}
	}
	if !m.waitUntil(begun.Add(r.lasts)) {
		return
	}
	m.writer.pause()
	m.late.wait()
	m.converge(r.String())
	if len(m.replicators) > 1 {
		m.stopReplicator(m.replicators[r.arg%2])
		m.converge("one of two stopped")
	}
	m.compact(m.from, m.atOrigin)
	m.compact(m.to, m.atPeer)
	m.writer.resume()
}

func (m *model) waitUntil(at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.t.Context().Done():
		return false
	}
}

// converge waits until the mirror equals the origin, accepts a rebuild that is
// held after a restore of the origin, and then judges what was seen on the way.
func (m *model) converge(after string) {
	m.t.Helper()
	begun, why := time.Now(), ""
	defer func() {
		if m.t.Failed() && why != "" {
			m.history.print(m.t, why)
			m.printGoroutines()
		}
	}()
	eventually(m.t, "mirror equals origin after "+after, func() string {
		m.acceptIfHeld()
		why = m.differs()
		return why
	})
	took := time.Since(begun)
	m.history.tell("equal after %v", took)
	if took > slow {
		m.t.Logf("equal only after %v, after %s", took, after)
		m.history.print(m.t, "")
	}
	if took > m.sum.worst {
		m.sum.worst, m.sum.worstRound = took, m.sum.rounds
	}
	m.judge()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checker.settled = m.truth.epoch
}

// printGoroutines shows what the replicators wait for.
func (m *model) printGoroutines() {
	var dump bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&dump, 1) // to memory: never fails
	for _, goroutine := range strings.Split(dump.String(), "\n\n") {
		if strings.Contains(goroutine, "/replicator.(*session)") {
			m.t.Log(goroutine)
		}
	}
}

// acceptIfHeld accepts what is held, which nothing but a restore may cause.
func (m *model) acceptIfHeld() {
	for _, p := range m.replicators {
		for _, s := range p.Status() {
			if s.State != StateHeld || m.accepted {
				continue
			}
			if m.restores == 0 {
				m.t.Fatalf("mirror held although no origin was restored: %s", s.LastError)
			}
			m.history.tell("accepted: %s", s.LastError)
			if _, err := m.from.Put(m.t.Context(), keyspace.AcceptKey("a", "b"), "by the model"); err != nil {
				m.t.Fatal(err)
			}
			m.accepted = true
		}
	}
}

// judge checks what was seen on the peer so far. Both sides must answer.
func (m *model) judge() {
	m.t.Helper()
	upTo := m.mark(m.to, m.atPeer)
	m.mark(m.from, m.atOrigin)
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.SortFunc(m.excuses.troubles, func(a, b interval) int { return a.from.Compare(b.from) })
	for len(m.pending) > 0 && m.pending[0].rev <= upTo {
		s := m.pending[0]
		m.pending = m.pending[1:]
		m.sum.sightings++
		if why := m.checker.see(s); why != "" {
			m.t.Errorf("%8.3f, peer revision %d: %s", s.at.Sub(m.history.begun).Seconds(), s.rev, why)
			m.history.print(m.t, why)
			m.t.FailNow()
		}
	}
	if n := m.checker.unmade; m.before > 0 && !m.accepted && n > m.before*6/10 {
		m.t.Fatalf("%d of %d keys were deleted after a restore, and nobody had accepted it", n, m.before)
	}
}

// mark writes a key and waits until it was seen; it returns its revision.
func (m *model) mark(c *clientv3.Client, o *observer) int64 {
	m.t.Helper()
	resp, err := c.Put(m.t.Context(), "/model/mark", "")
	if err != nil {
		m.t.Fatal(err)
	}
	o.wait(resp.Header.Revision)
	return resp.Header.Revision
}

// compact compacts an etcd at its head.
func (m *model) compact(c *clientv3.Client, o *observer) {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Second)
	defer cancel()
	_, err := c.Compact(ctx, o.seen(), clientv3.WithCompactPhysical())
	m.history.tell("compacted at %d: %v", o.seen(), err)
}

// trouble enters that keepalives could not arrive from a time until now.
func (m *model) trouble(from time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.excuses.troubles = append(m.excuses.troubles, interval{from, time.Now()})
}
