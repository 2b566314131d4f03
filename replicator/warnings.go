package replicator

import (
	"maps"
	"slices"
)

// The kinds of warnings, of which a mirror has one each at most.
const (
	warnCredentials = "credentials"
	warnIsolation   = "isolation"
)

// warn sets the warning of a kind, or takes it back when err is nil, and reports
// whether it is a new one.
func (s *status) warn(kind string, err error) (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.warnings, kind)
		return false
	}
	if s.warnings == nil {
		s.warnings = map[string]string{}
	}
	fresh = s.warnings[kind] != err.Error()
	s.warnings[kind] = err.Error()
	return fresh
}

// warningTexts returns the warnings in the order of their kinds. s.mu is held.
func (s *status) warningTexts() []string {
	var texts []string
	for _, kind := range slices.Sorted(maps.Keys(s.warnings)) {
		texts = append(texts, s.warnings[kind])
	}
	return texts
}
