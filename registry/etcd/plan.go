package etcd

import (
	"iter"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// write is one endpoint to store, change or remove.
type write struct {
	id  registry.Key
	key string
	// node on whose behalf.
	node string
	// endpoint and value to store; nil removes, unless there is a change.
	endpoint *registry.Endpoint
	value    []byte
	// change, when set, makes the endpoint to store from the one that is there,
	// nil where there is none.
	change func(stored *registry.Endpoint) (registry.Endpoint, error)
	// reported says that a stored health of draining stays.
	reported bool
	// lease to store the endpoint on, and those that it may stay on. Without the
	// latter, not even an empty map, it has no lease. A change leaves it on its own.
	lease   clientv3.LeaseID
	mayStay map[clientv3.LeaseID]bool
}

// seated reports whether existing is on a lease that w leaves it on.
func (w write) seated(existing *mvccpb.KeyValue) bool {
	id := clientv3.LeaseID(existing.GetLease())
	return w.change != nil || w.mayStay == nil && id == clientv3.NoLease || w.mayStay[id]
}

func (w write) size() int { return len(w.key) + len(w.value) }

func (w write) removes() bool { return w.endpoint == nil && w.change == nil }

// usualValue is about the size of a value.
const usualValue = 96

func puts(endpoints []registry.Endpoint) ([]write, error) {
	out := make([]write, len(endpoints))
	values := make([]byte, 0, usualValue*len(endpoints))
	for i := range endpoints {
		e, at := &endpoints[i], len(values)
		var err error
		if values, err = wire.AppendValue(values, *e); err != nil {
			return nil, err
		}
		out[i] = write{id: e.Key, key: keyspace.Format(e.Key), node: e.Node, endpoint: e, value: values[at:len(values):len(values)]}
	}
	return out, nil
}

func removals(claims []registry.Claim) []write {
	out := make([]write, len(claims))
	for i, c := range claims {
		out[i] = write{id: c.Key, key: keyspace.Format(c.Key), node: c.Node}
	}
	return out
}

// batches cuts writes into runs that fit one transaction.
func batches(writes []write) iter.Seq[[]write] {
	return func(yield func([]write) bool) {
		for len(writes) > 0 {
			n, size := 0, 0
			for n < len(writes) && n < registry.MaxBatch && (n == 0 || size+writes[n].size() <= maxBatchBytes) {
				size += writes[n].size()
				n++
			}
			if !yield(writes[:n]) {
				return
			}
			writes = writes[n:]
		}
	}
}

// step is a write that is needed, guarded by the revision that was read: 0 where
// the key does not exist.
type step struct {
	write
	modRevision int64
	// absent is the node that held the key and is not present; empty: none.
	absent string
}

// decide returns what w has to do, given what is there, nil where there is
// nothing. It fails with a Conflict if the key is held by another node that is
// present. A stored value that does not parse is held by nobody.
func decide(w write, existing *mvccpb.KeyValue, present func(node string) bool) (s step, needed bool, err error) {
	var stored *registry.Endpoint
	exact := false
	if existing != nil {
		e, disagreements, err := wire.ParseValue(w.id, existing.Value)
		if err == nil {
			stored, exact = &e, len(disagreements) == 0
		}
	}
	s = step{write: w, modRevision: existing.GetModRevision()}
	if stored != nil {
		if s.absent, err = w.mayReplace(stored.Node, present); err != nil {
			return step{}, false, err
		}
	}
	if err := s.resolve(stored); err != nil {
		return step{}, false, err
	}
	if s.removes() {
		return s, existing != nil, nil
	}
	return s, !exact || !stored.Equal(*s.endpoint) || !s.seated(existing), nil
}

// resolve makes the endpoint to store where that depends on the stored one.
func (s *step) resolve(stored *registry.Endpoint) (err error) {
	var e registry.Endpoint
	switch {
	case s.change != nil:
		if e, err = s.change(stored); err != nil {
			return err
		}
	case s.reported && stored != nil && stored.Health == registry.Draining:
		e = s.endpoint.KeepDraining(*stored)
	default:
		return nil
	}
	s.endpoint = &e
	s.value, err = wire.Value(e)
	return err
}

// mayReplace returns a Conflict if holder keeps w from its key, and holder if it
// does not because it is absent.
func (w write) mayReplace(holder string, present func(node string) bool) (absent string, err error) {
	if holder == "" || holder == w.node {
		return "", nil
	}
	if w.endpoint == nil && w.node == "" {
		return "", nil
	}
	if w.endpoint != nil && !present(holder) {
		return holder, nil
	}
	return "", registry.Errorf(registry.Conflict,
		"endpoint %s %s %s is held by node %q: unregister it there, or wait until that node has left",
		w.id.Service, w.id.Protocol, address(w.id), holder)
}

func address(k registry.Key) string {
	if k.Instance == "" {
		return k.IP.String()
	}
	return k.IP.String() + "@" + k.Instance
}
