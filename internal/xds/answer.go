package xds

import "time"

// After a refusal the same is not sent for firstHold, then twice as long each time, up
// to longestHold.
const (
	firstHold   = time.Second
	longestHold = time.Minute
)

// hold keeps a resource back that a client has refused.
type hold struct {
	version string
	tries   int
	at      time.Time
}

// left is for how long a version is kept back: what is not what was refused, only
// for as long as a first refusal would.
func (h hold) left(version string, now time.Time) time.Duration {
	switch {
	case h.tries == 0:
		return 0
	case version == h.version:
		return h.at.Add(holdFor(h.tries)).Sub(now)
	default:
		return h.at.Add(firstHold).Sub(now)
	}
}

// refusal is a response that a client did not take.
type refusal struct {
	At       time.Time
	Versions map[string]string
	Reason   string
	// InRow counts those since the client last took a response.
	InRow int
}

// answered takes what the client says to the response with that nonce, and reports
// whether it refused. What it says to an older one does not count any more.
func (s *subscription) answered(nonce, reason string, refused bool, now time.Time) (nack bool) {
	r := s.latest
	if r == nil || nonce != r.nonce {
		return false
	}
	flying := s.flight != nil
	s.flight = nil
	if refused {
		// Even if it was taken: a request for other names, sent before the client
		// had looked at the response, reads as if it were.
		s.latest = nil
		s.refuse(r, reason, now)
		return true
	}
	if flying {
		s.accept(r, now)
	}
	return false
}

func (s *subscription) accept(r *response, now time.Time) {
	s.ackedAt = now
	s.refused = nil
	for n, v := range r.versions {
		delete(s.held, n)
		if _, sent := s.sent.of[n]; !sent {
			continue // not asked for any more, or to be sent again
		}
		if v == absent {
			delete(s.acked, n)
		} else {
			s.acked[n] = v
		}
	}
}

func (s *subscription) refuse(r *response, reason string, now time.Time) {
	inRow := 1
	if s.refused != nil {
		inRow += s.refused.InRow
	}
	s.refused = &refusal{At: now, Versions: r.versions, Reason: reason, InRow: inRow}
	for n, v := range r.versions {
		if _, asked := s.names[n]; !asked && !s.wantsAll() {
			continue // not any more
		}
		s.held[n] = hold{version: v, tries: s.held[n].tries + 1, at: now}
		s.sent.remove(n)
	}
}

// holdFor is how long something is kept back that was refused that often in a row.
func holdFor(tries int) time.Duration {
	return min(longestHold, firstHold<<min(tries-1, 16))
}
