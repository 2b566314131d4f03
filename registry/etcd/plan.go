package etcd

import (
	"iter"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// write is one endpoint to store or remove.
type write struct {
	id  registry.Key
	key string
	// node on whose behalf.
	node string
	// endpoint and value to store; nil removes.
	endpoint *registry.Endpoint
	value    []byte
}

func (w write) size() int { return len(w.key) + len(w.value) }

func puts(endpoints []registry.Endpoint) ([]write, error) {
	out := make([]write, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		value, err := wire.Value(*e)
		if err != nil {
			return nil, err
		}
		out[i] = write{id: e.Key, key: keyspace.Format(e.Key), node: e.Node, endpoint: e, value: value}
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
}

// plan returns what a batch has to write, given what is there now, aligned with
// the batch and nil where there is nothing. It fails with a Conflict if a key is
// held by another node.
func plan(batch []write, existing []*mvccpb.KeyValue, present func(node string) bool) ([]step, error) {
	var steps []step
	for i, w := range batch {
		needed, err := decide(w, existing[i], present)
		if err != nil {
			return nil, err
		}
		if needed {
			steps = append(steps, step{write: w, modRevision: existing[i].GetModRevision()})
		}
	}
	return steps, nil
}

// decide reports whether w has anything to do. A stored value that does not
// parse is held by nobody.
func decide(w write, existing *mvccpb.KeyValue, present func(node string) bool) (bool, error) {
	if existing == nil {
		return w.endpoint != nil, nil
	}
	stored, disagreements, err := wire.ParseValue(w.id, existing.Value)
	if err != nil {
		return true, nil
	}
	if err := w.mayReplace(stored.Node, present); err != nil {
		return false, err
	}
	same := w.endpoint != nil && len(disagreements) == 0 && stored.Equal(*w.endpoint)
	return !same, nil
}

// mayReplace returns a Conflict if holder keeps w from its key.
func (w write) mayReplace(holder string, present func(node string) bool) error {
	if holder == "" || holder == w.node {
		return nil
	}
	if w.endpoint == nil && w.node == "" {
		return nil
	}
	if w.endpoint != nil && !present(holder) {
		return nil
	}
	return registry.Errorf(registry.Conflict,
		"endpoint %s %s %s is held by node %q: unregister it there, or wait until that node has left",
		w.id.Service, w.id.Protocol, address(w.id), holder)
}

func address(k registry.Key) string {
	if k.Instance == "" {
		return k.IP.String()
	}
	return k.IP.String() + "@" + k.Instance
}
