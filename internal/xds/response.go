package xds

import (
	"maps"
	"slices"
	"strconv"
)

// response is what to send next.
type response struct {
	kind      kind
	nonce     string
	version   string
	resources []*resource
	// removed are gone, by a delta; errors say why a name has no resource.
	removed []string
	errors  map[string]string
	// versions of all that the response tells of, changed those that are new.
	versions map[string]string
	changed  []string
}

// respond makes a response of what is due and notes that it is sent.
func (s *subscription) respond(d due) *response {
	s.count++
	s.last = strconv.FormatUint(s.count, 10)
	r := &response{kind: s.kind, nonce: s.last, changed: d.changed, errors: map[string]string{}, versions: map[string]string{}}
	names := s.apart(d.changed)
	if s.whole() {
		names = slices.Sorted(maps.Keys(d.all))
		for n := range d.errors {
			names = append(names, n)
		}
	}
	for _, n := range names {
		s.tell(r, n, d)
	}
	for _, n := range d.gone {
		s.sent.remove(n)
		delete(s.acked, n)
		r.removed = append(r.removed, n)
	}
	r.version = s.sent.name()
	return r
}

// apart leaves out names that were refused, or returns one of these alone: so the
// client says which of them it does not take.
func (s *subscription) apart(names []string) []string {
	var clean []string
	for _, n := range names {
		if s.held[n].tries == 0 {
			clean = append(clean, n)
		}
	}
	if len(clean) == 0 && len(names) > 0 {
		return names[:1]
	}
	return clean
}

// tell puts what there is of one name into r.
func (s *subscription) tell(r *response, name string, d due) {
	res, version := d.all[name], absent
	delete(s.errors, name)
	if res != nil {
		version = res.version
		r.resources = append(r.resources, res)
	} else {
		s.errors[name] = d.errors[name]
		r.errors[name] = d.errors[name]
		r.removed = append(r.removed, name)
	}
	s.sent.set(name, version)
	r.versions[name] = version
}
