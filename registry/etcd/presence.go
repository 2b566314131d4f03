package etcd

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// DefaultPresenceTTL is how long a node stays present after a report: three
	// reports and some network trouble.
	DefaultPresenceTTL = 30 * time.Second
	// MinPresenceTTL is the shortest TTL that etcd grants with its default
	// timeouts.
	MinPresenceTTL = 2 * time.Second
	// renewals of the lease in one TTL.
	renewals = 5
	// maxTouching nodes wait for their key at once; more are refused.
	maxTouching = 16 << 10
)

// PresenceConfig says whose presence is kept, and for how long.
type PresenceConfig struct {
	Client *clientv3.Client
	// Origin is the cluster whose nodes are kept present.
	Origin registry.Origin
	// Name of the registrar, unique among those of its cluster, in the syntax of
	// a node's name.
	Name string
	// TTL of the lease and of a node's sign of life, in whole seconds. 0:
	// DefaultPresenceTTL.
	TTL time.Duration
	Log *slog.Logger
	// RequestTimeout bounds each request to etcd; 0 means DefaultRequestTimeout.
	RequestTimeout time.Duration
}

// Validate tells what is missing or wrong.
func (c PresenceConfig) Validate() error {
	if c.Client == nil {
		return errors.New("presence needs a client of its region's etcd")
	}
	if c.Name == "" {
		return errors.New("presence needs the name of its registrar")
	}
	if c.TTL != 0 && (c.TTL < MinPresenceTTL || c.TTL%time.Second != 0) {
		return errors.New("the TTL of presence must be whole seconds, two at least")
	}
	return errors.Join(c.Origin.Validate(), registry.ValidateNode(c.Name))
}

// Presence keeps, on one lease of this process, the presence keys of the nodes
// that this registrar hears from, and one of the registrar itself. A node is
// present until a TTL after its last sign of life; when the process dies, until
// its lease runs out. The lease is not revoked at an orderly stop: nodes find
// another registrar meanwhile, which moves their keys to its own lease.
type Presence struct {
	c    PresenceConfig
	wake chan struct{}

	mu    sync.Mutex
	lease clientv3.LeaseID
	// until is when the lease ends unless it is renewed.
	until   time.Time
	seats   map[string]*seat
	waiting []*touch
	// ended: nobody answers any more.
	ended bool
}

// seat is one node that this registrar hears from.
type seat struct {
	last time.Time
	// lease that its key was put on; 0: none yet.
	lease clientv3.LeaseID
	put   time.Time
}

// touch waits until its nodes' keys are durable.
type touch struct {
	ctx   context.Context
	nodes []string
	done  chan error
}

// NewPresence returns a Presence that does not run yet.
func NewPresence(c PresenceConfig) (*Presence, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.TTL == 0 {
		c.TTL = DefaultPresenceTTL
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.RequestTimeout = requestTimeout(c.RequestTimeout)
	return &Presence{c: c, wake: make(chan struct{}, 1), seats: map[string]*seat{}}, nil
}

// TTL is how long a node is present after a sign of life.
func (p *Presence) TTL() time.Duration { return p.c.TTL }

// Name is the registrar's.
func (p *Presence) Name() string { return p.c.Name }

// errEnded: the process is about to end.
var errEnded = registry.Errorf(registry.Unavailable, "the registrar is stopping: report to another, or again")

// Touch takes a sign of life of nodes and returns once each is present by what
// etcd holds. It is Unavailable while etcd does not answer, and once Run has
// returned; before Run it waits. A node that is present already costs no request.
func (p *Presence) Touch(ctx context.Context, nodes ...string) error {
	t := &touch{ctx: ctx, done: make(chan error, 1)}
	p.mu.Lock()
	now := time.Now()
	for _, n := range nodes {
		s := p.seats[n]
		if s == nil {
			s = &seat{}
			p.seats[n] = s
		}
		s.last = now
		if s.lease == 0 || s.lease != p.lease || now.After(p.until) {
			t.nodes = append(t.nodes, n)
		}
	}
	full := len(p.waiting) >= maxTouching
	ended := p.ended
	if len(t.nodes) > 0 && !full && !ended {
		p.waiting = append(p.waiting, t)
	}
	p.mu.Unlock()
	switch {
	case ended:
		return errEnded
	case len(t.nodes) == 0:
		return nil
	case full:
		return registry.Errorf(registry.Unavailable, "%d reports wait for etcd already: try again in a moment", maxTouching)
	}
	select {
	case p.wake <- struct{}{}:
	default: // a signal is there already
	}
	select {
	case err := <-t.done:
		return translate("keep node present", p.c.Client, err)
	case <-ctx.Done():
		return translate("keep node present", p.c.Client, ctx.Err())
	}
}

// Run keeps the lease alive and the keys on it until ctx ends; it returns nil
// then. It goes on through faults of etcd. It may be called once.
func (p *Presence) Run(ctx context.Context) error {
	defer p.end()
	tick := time.NewTicker(p.c.TTL / renewals)
	defer tick.Stop()
	failing := false
	for {
		err := p.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if (err != nil) != failing {
			failing = err != nil
			p.say(err)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-p.wake:
				p.answer(ctx)
			case <-tick.C:
				waiting = false
			}
		}
	}
}

// end answers whoever waits.
func (p *Presence) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, t := range p.waiting {
		t.done <- errEnded
	}
	p.waiting = nil
}

func (p *Presence) say(err error) {
	if err != nil {
		p.c.Log.Warn("cannot keep nodes present", "error", err)
		return
	}
	p.c.Log.Info("keep nodes present", "ttl", p.c.TTL)
}

// round renews the lease, looks whether the keys are still on it, and lets nodes
// go that were not heard from for a TTL.
func (p *Presence) round(ctx context.Context) error {
	if err := p.renew(ctx); err != nil {
		return err
	}
	p.forget()
	return p.audit(ctx)
}

// answer makes those present that wait for it.
func (p *Presence) answer(ctx context.Context) {
	p.mu.Lock()
	waiting := p.waiting
	p.waiting = nil
	p.await(waiting)
	alive := p.lease != 0 && time.Now().Before(p.until)
	p.mu.Unlock()
	var err error
	if !alive {
		err = p.renew(ctx)
	}
	if err == nil {
		err = p.putMissing(ctx)
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = p.grant(ctx)
	}
	for _, t := range waiting {
		t.done <- err
	}
}

// await makes sure that nodes which somebody still waits for are not forgotten as
// silent, however long etcd took; p.mu is held.
func (p *Presence) await(waiting []*touch) {
	for _, t := range waiting {
		if t.ctx.Err() != nil {
			continue
		}
		for _, n := range t.nodes {
			if p.seats[n] == nil {
				p.seats[n] = &seat{}
			}
			p.seats[n].last = time.Now()
		}
	}
}

// renew prolongs the lease, or gets a new one where it has run out.
func (p *Presence) renew(ctx context.Context) error {
	p.mu.Lock()
	lease := p.lease
	p.mu.Unlock()
	if lease == 0 {
		return p.grant(ctx)
	}
	call, cancel := context.WithTimeout(ctx, p.c.RequestTimeout)
	defer cancel()
	asked := time.Now()
	resp, err := p.c.Client.KeepAliveOnce(call, lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		p.c.Log.Warn("the lease of presence ran out, taking another")
		return p.grant(ctx)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = asked.Add(time.Duration(resp.TTL) * time.Second)
	return nil
}

// grant gets a lease and puts on it what this registrar keeps present: itself,
// and each node that was heard from within a TTL.
func (p *Presence) grant(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, p.c.RequestTimeout)
	defer cancel()
	asked := time.Now()
	resp, err := p.c.Client.Grant(call, int64(p.c.TTL/time.Second))
	if err != nil {
		return err
	}
	if err := p.put(call, resp.ID, keyspace.RegistrarPresenceKey(p.c.Origin, p.c.Name)); err != nil {
		return err
	}
	p.mu.Lock()
	p.lease, p.until = resp.ID, asked.Add(time.Duration(resp.TTL)*time.Second)
	p.mu.Unlock()
	return p.putMissing(ctx)
}

func (p *Presence) put(ctx context.Context, lease clientv3.LeaseID, keys ...string) error {
	ctx, cancel := context.WithTimeout(ctx, p.c.RequestTimeout)
	defer cancel()
	ops := make([]clientv3.Op, len(keys))
	for i, k := range keys {
		ops[i] = clientv3.OpPut(k, p.c.Name, clientv3.WithLease(lease))
	}
	_, err := p.c.Client.Txn(ctx).Then(ops...).Commit()
	return err
}

// putMissing puts the keys of nodes that have none on the lease.
func (p *Presence) putMissing(ctx context.Context) error {
	for {
		lease, nodes := p.missing()
		if len(nodes) == 0 {
			return nil
		}
		keys := make([]string, len(nodes))
		for i, n := range nodes {
			keys[i] = keyspace.PresenceKey(p.c.Origin, n)
		}
		if err := p.put(ctx, lease, keys...); err != nil {
			return err
		}
		p.seated(lease, nodes)
	}
}

// missing returns nodes to put, at most one transaction's. Nodes that fell
// silent before they were put are forgotten.
func (p *Presence) missing() (clientv3.LeaseID, []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var nodes []string
	for n, s := range p.seats {
		switch {
		case s.lease == p.lease:
		case time.Since(s.last) > p.c.TTL:
			delete(p.seats, n)
		case len(nodes) < registry.MaxBatch:
			nodes = append(nodes, n)
		}
	}
	return p.lease, nodes
}

func (p *Presence) seated(lease clientv3.LeaseID, nodes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range nodes {
		if s := p.seats[n]; s != nil {
			s.lease, s.put = lease, time.Now()
		}
	}
}

// forget gives up nodes that were not heard from for a TTL. Their keys are on the
// lease then without a seat: the audit deletes them.
func (p *Presence) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, s := range p.seats {
		if silent := time.Since(s.last); silent > p.c.TTL {
			p.c.Log.Info("node fell silent", "node", n, "for", silent.Round(time.Second))
			delete(p.seats, n)
		}
	}
}

// audit compares the keys on the lease with the nodes that are heard from. A node
// whose key is not there moved to another registrar, or somebody deleted the key:
// it is forgotten, and its next sign of life here puts it again, before the other
// registrar would let it go. A key whose node is not heard from is deleted.
func (p *Presence) audit(ctx context.Context) error {
	p.mu.Lock()
	lease := p.lease
	p.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, p.c.RequestTimeout)
	defer cancel()
	asked := time.Now()
	resp, err := p.c.Client.TimeToLive(call, lease, clientv3.WithAttachedKeys())
	if err != nil {
		return err
	}
	if resp.TTL <= 0 {
		return nil // the next round finds it out
	}
	own := keyspace.RegistrarPresenceKey(p.c.Origin, p.c.Name)
	on := make(map[string]bool, len(resp.Keys))
	for _, k := range resp.Keys {
		on[string(k)] = true
	}
	if !on[own] {
		if err := p.put(ctx, lease, own); err != nil {
			return err
		}
	}
	delete(on, own)
	for _, key := range p.compare(lease, asked, on) {
		if err := p.remove(ctx, lease, key); err != nil {
			return err
		}
	}
	return nil
}

// compare forgets nodes whose key was not on the lease at the time asked, and
// returns the keys of nodes that are not heard from.
func (p *Presence) compare(lease clientv3.LeaseID, asked time.Time, on map[string]bool) (silent []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, s := range p.seats {
		key := keyspace.PresenceKey(p.c.Origin, n)
		if s.lease == lease && s.put.Before(asked) && !on[key] {
			delete(p.seats, n)
		}
		delete(on, key)
	}
	return slices.Sorted(maps.Keys(on))
}

// remove deletes key if it is on the lease still. A sign of life that comes
// meanwhile puts it again: that is done by the goroutine which runs this.
func (p *Presence) remove(ctx context.Context, lease clientv3.LeaseID, key string) error {
	ctx, cancel := context.WithTimeout(ctx, p.c.RequestTimeout)
	defer cancel()
	_, err := p.c.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.LeaseValue(key), "=", lease)).
		Then(clientv3.OpDelete(key)).
		Commit()
	return err
}
