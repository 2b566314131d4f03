package replicator

import (
	"context"
	"errors"
	"time"
)

const (
	// recordEvery is how often a moved checkpoint is written to the peer.
	recordEvery = 2 * time.Second
	// recordIdleEvery: on an idle mirror only the origin's other keys move it.
	recordIdleEvery = 30 * time.Second
)

// recordAlways writes the checkpoint to the peer from time to time: a successor
// looks at what changed since.
func (s *session) recordAlways(ctx context.Context) error {
	last := time.Now()
	busy := false
	for sleep(ctx, recordEvery) {
		s.report(ctx)
		s.askPeer(ctx) // for the next record
		if s.rec.recorded() == 0 {
			continue // not complete yet
		}
		sent := s.status.takeSent()
		busy = busy || sent
		if !busy && time.Since(last) < recordIdleEvery {
			continue
		}
		err := s.recordNow(ctx)
		if isFull(err) {
			continue
		}
		if err != nil {
			return err
		}
		last, busy = time.Now(), false
	}
	return ctx.Err()
}

// recordNow gives up leases that carry nothing and writes the checkpoint.
func (s *session) recordNow(ctx context.Context) error {
	if s.table.dropEmpty() {
		if err := s.rec.write(ctx); err != nil {
			return err
		}
	}
	return s.record(ctx)
}

// record writes the checkpoint as it is now, if it has moved.
func (s *session) record(ctx context.Context) error {
	candidate := ""
	if last := s.last.Load(); last != nil {
		candidate = string(last.Kv.Key)
	}
	checkpoint := s.queue.depth().checkpoint
	if checkpoint <= s.rec.recorded() {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	witness, err := s.witnessAt(call, checkpoint, candidate)
	if err != nil {
		if ctx.Err() == nil && s.rec.recorded() > 0 {
			s.log.Debug("checkpoint not moved", "error", err) // own etcd away, or compacted past it just now
			return nil
		}
		return err
	}
	return s.rec.complete(ctx, checkpoint, witness)
}

// report brings the status up to date with what the session holds.
func (s *session) report(ctx context.Context) {
	d := s.queue.depth()
	keys, leases := s.table.total()
	head := d.position
	if h, err := s.head(ctx); err == nil {
		head = h
	} else if !errors.Is(err, context.Canceled) {
		s.log.Debug("read own etcd's revision", "error", err)
	}
	s.sendMu.Lock()
	inFlight, window := s.inFlight, s.window.limit()
	s.sendMu.Unlock()
	s.status.progress(progress{
		keys: keys, leases: leases, pending: d.entries, oldest: d.oldest,
		checkpoint: d.checkpoint, behind: max(0, head-d.checkpoint),
		inFlight: inFlight, window: window, poison: s.poison.keys(),
	})
}
