package replicator

import (
	"sync"
	"testing"
)

// A session that ends closes its queue while transactions are still answered.
func TestQueueClosedUnderABatchInFlight(t *testing.T) {
	for name, answer := range map[string]func(*queue, []*entry){
		"acknowledged": (*queue).acknowledge,
		"refused":      (*queue).retry,
		"replaced":     func(q *queue, batch []*entry) { q.replace(batch[0], opDelete) },
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue()
			var settled sync.WaitGroup
			settled.Add(2)
			q.push("k", op{rev: 1, settled: &settled}, 1)
			batch := q.take(limits{ops: 1, bytes: 1 << 20}, nowhere)
			q.push("k", op{rev: 2, settled: &settled}, 2)
			q.close()
			answer(q, batch)
			settled.Wait()
			if d := q.depth(); d.entries != 0 {
				t.Errorf("%d entries are left", d.entries)
			}
		})
	}
}
