package source

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/agent/state"
	"github.com/aether-federation/aether/registry"
)

func endpointOf(t *testing.T, service string) registry.Endpoint {
	t.Helper()
	e, err := Check(registry.Endpoint{Key: registry.Key{Service: service, Protocol: registry.TCP, IP: defaults.IP}})
	fatal(t, err)
	return e
}

func TestRegistrationsOutlastARestart(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	fatal(t, err)
	l := NewLocal(dir, nil)
	a, b := endpointOf(t, "a"), endpointOf(t, "b")
	b.Metadata = map[string]string{"v": "1"}
	fatal(t, l.Register([]registry.Endpoint{a, b}, 0))
	fatal(t, l.SetHealth([]registry.Key{a.Key}, registry.Draining))
	again := NewLocal(dir, nil)
	wantState(t, again.State(), true, "a b")
	if !again.State().Declared[1].Endpoint.Equal(b) || again.Health()[a.Key] != registry.Draining || len(again.Health()) != 1 {
		t.Errorf("remembered are %v, %v", again.State(), again.Health())
	}
	removed, err := again.Unregister([]registry.Key{a.Key, endpointOf(t, "c").Key})
	fatal(t, err)
	if removed != 1 {
		t.Errorf("%d were removed", removed)
	}
	last := NewLocal(dir, nil)
	wantState(t, last.State(), true, "b")
	if len(last.Health()) > 0 {
		t.Errorf("healths are %v", last.Health())
	}
}

func TestRefreshKeepsADrainAndAChangeEndsIt(t *testing.T) {
	l := NewLocal(state.Dir{}, nil)
	a := endpointOf(t, "a")
	fatal(t, l.Register([]registry.Endpoint{a}, MinTTL))
	fatal(t, l.SetHealth([]registry.Key{a.Key}, registry.Draining))
	fatal(t, l.Register([]registry.Endpoint{a}, MinTTL))
	if l.Health()[a.Key] != registry.Draining {
		t.Error("a refresh ended the drain")
	}
	a.Weight = 5
	fatal(t, l.Register([]registry.Endpoint{a}, MinTTL))
	if len(l.Health()) > 0 {
		t.Error("a change did not end the drain")
	}
}

func TestRegistrationsEnd(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	fatal(t, err)
	l := NewLocal(dir, nil)
	fatal(t, l.Register([]registry.Endpoint{endpointOf(t, "a")}, time.Minute))
	fatal(t, l.Register([]registry.Endpoint{endpointOf(t, "b")}, 2*time.Minute))
	fatal(t, l.Register([]registry.Endpoint{endpointOf(t, "c")}, 0))
	now := time.Now()
	next, err := l.expire(now)
	fatal(t, err)
	if next.Before(now.Add(50*time.Second)) || next.After(now.Add(time.Minute)) {
		t.Errorf("the next ends in %v", next.Sub(now))
	}
	wantState(t, l.State(), true, "a b c")
	_, err = l.expire(now.Add(90 * time.Second))
	fatal(t, err)
	wantState(t, l.State(), true, "b c")
	wantState(t, NewLocal(dir, nil).State(), true, "b c")
	if err := l.Register(nil, time.Second); registry.KindOf(err) != registry.Invalid {
		t.Errorf("a TTL of a second: %v", err)
	}
}

// TestEndInTime: Run ends what is not refreshed by itself.
func TestEndInTime(t *testing.T) {
	l := NewLocal(state.Dir{}, nil)
	a := endpointOf(t, "a")
	l.entries[a.Key] = entry{endpoint: a, ttl: MinTTL, expires: time.Now().Add(50 * time.Millisecond)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var told []int
	fatal(t, l.Run(ctx, func(s State) {
		if told = append(told, len(s.Declared)); len(s.Declared) == 0 {
			cancel()
		}
	}))
	if told[len(told)-1] != 0 {
		t.Errorf("told were %v", told)
	}
}

func TestDamagedStateIsKeptAside(t *testing.T) {
	path := t.TempDir()
	dir, err := state.Open(path)
	fatal(t, err)
	fatal(t, NewLocal(dir, nil).Register([]registry.Endpoint{endpointOf(t, "a")}, 0))
	file := filepath.Join(path, "local.json")
	b, err := os.ReadFile(file)
	fatal(t, err)
	write(t, file, string(b[:len(b)-9]))
	wantState(t, NewLocal(dir, nil).State(), true, "")
	if kept, err := os.ReadFile(file + ".bad"); err != nil || len(kept) != len(b)-9 {
		t.Errorf("kept are %d bytes, %v", len(kept), err)
	}
}

func TestCheckRefusesAnOrigin(t *testing.T) {
	e := endpointOf(t, "a")
	e.Region = "b"
	if _, err := Check(e); registry.KindOf(err) != registry.Invalid {
		t.Errorf("a region: %v", err)
	}
}
