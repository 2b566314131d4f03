package agent

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
)

func healthsOf(m map[registry.Key]registry.Endpoint) string {
	var out []string
	for _, k := range slices.SortedFunc(maps.Keys(m), registry.Key.Compare) {
		out = append(out, k.Service+" "+m[k].Health.String())
	}
	return strings.Join(out, ", ")
}

// wantHistory checks what clients saw happen.
func wantHistory(t *testing.T, o *observer, want ...string) {
	t.Helper()
	if got := o.history(); !slices.Equal(got, want) {
		t.Errorf("clients saw %q, want %q", got, want)
	}
}

func TestFilesAndProbesReachClients(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, b := observe(t, r), newBackend(t)
	n := newNode(t, r)
	n.services("services:\n" + b.probed("api") + "- {name: db, protocol: tcp, ip: 10.0.0.2}\n")
	n.start()
	o.await(t, "api healthy, db healthy")
	b.ill.Store(true)
	o.await(t, "api unhealthy, db healthy")
	b.ill.Store(false)
	o.await(t, "api healthy, db healthy")
	wantHistory(t, o, "api healthy", "db healthy", "api unhealthy", "api healthy")
	n.services("services:\n- {name: db, protocol: tcp, ip: 10.0.0.2}\n- {name: x, protocol: tcp, ip: 10.0.0.3, zone: a2}\n")
	o.await(t, "db healthy, x healthy")
	n.services("services:\n- {name: d")
	eventually(t, "the problem is told", func() bool { return len(n.node.Status().Problems) == 1 })
	if got := o.healths(); got != "db healthy, x healthy" {
		t.Errorf("half a file left %s", got)
	}
	n.services("services: []")
	o.await(t, "")
	fatal(t, n.end())
}

// TestRestartIsNotSeen: an agent that stops so as to come back, and comes back with
// an endpoint that just fails once, changes nothing that clients see.
func TestRestartIsNotSeen(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, b := observe(t, r), newBackend(t)
	n := newNode(t, r)
	n.leave.Keep = func() bool { return true }
	n.services("services:\n" + b.probed("api") + "- {name: db, protocol: tcp, ip: 10.0.0.2}\n")
	n.start()
	fatal(t, n.node.Register(t.Context(), []registry.Endpoint{program("p")}, time.Minute))
	o.await(t, "api healthy, db healthy, p healthy")
	o.history()
	for range 3 {
		fatal(t, n.end())
		n.start()
		eventually(t, "it announces again", func() bool {
			s := n.node.Status()
			return s.Announcing && s.Reports.Connected
		})
	}
	n.services("services:\n" + b.probed("api") + "- {name: db, protocol: tcp, ip: 10.0.0.2}\n- {name: last, protocol: tcp, ip: 10.0.0.2}\n")
	o.await(t, "api healthy, db healthy, last healthy, p healthy")
	wantHistory(t, o, "last healthy")
}

func program(service string) registry.Endpoint {
	return registry.Endpoint{Key: registry.Key{Service: service, Protocol: registry.TCP, IP: netip.MustParseAddr("10.0.0.7")}}
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o := observe(t, r)
	n := newNode(t, r)
	n.services("services:\n- {name: db, protocol: tcp, ip: 10.0.0.2}\n")
	n.start()
	o.await(t, "db healthy")
	fatal(t, n.node.Register(t.Context(), []registry.Endpoint{program("p"), program("q")}, 0))
	o.await(t, "db healthy, p healthy, q healthy")
	db := registry.Key{Service: "db", Protocol: registry.TCP, IP: netip.MustParseAddr("10.0.0.2")}
	claim := func(k registry.Key) []registry.Claim { return []registry.Claim{{Key: k}} }
	fatal(t, n.node.SetHealth(t.Context(), claim(db), registry.Draining))
	fatal(t, n.node.SetHealth(t.Context(), claim(program("p").Key), registry.Unhealthy))
	o.await(t, "db draining, p unhealthy, q healthy")
	fatal(t, n.node.SetHealth(t.Context(), claim(db), registry.Healthy))
	o.await(t, "db healthy, p unhealthy, q healthy")
	removed, err := n.node.Unregister(t.Context(), claim(program("p").Key))
	fatal(t, err)
	if removed != 1 {
		t.Errorf("%d were removed", removed)
	}
	o.await(t, "db healthy, q healthy")

	for name, tt := range map[string]struct {
		err  error
		kind registry.Kind
	}{
		"a file's":         {n.node.Register(t.Context(), []registry.Endpoint{{Key: db}}, 0), registry.Conflict},
		"another node's":   {n.node.Register(t.Context(), []registry.Endpoint{{Key: program("x").Key, Node: "n2"}}, 0), registry.Invalid},
		"twice":            {n.node.Register(t.Context(), []registry.Endpoint{program("x"), program("x")}, 0), registry.Invalid},
		"health of none":   {n.node.SetHealth(t.Context(), claim(program("none").Key), registry.Draining), registry.NotFound},
		"invalid":          {n.node.Register(t.Context(), []registry.Endpoint{program("X")}, 0), registry.Invalid},
		"too short a time": {n.node.Register(t.Context(), []registry.Endpoint{program("x")}, time.Second), registry.Invalid},
	} {
		if registry.KindOf(tt.err) != tt.kind || tt.err == nil {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
	if _, err := n.node.Unregister(t.Context(), claim(db)); registry.KindOf(err) != registry.Conflict {
		t.Errorf("unregister a file's: %v", err)
	}
}

// TestOutages: registrar and etcd go away and come back; what changed meanwhile is
// there in the end, and nothing else was touched.
func TestOutages(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	r := startRegistrar(t, server)
	o := observe(t, r)
	n := newNode(t, r)
	n.services("services:\n- {name: a, protocol: tcp, ip: 10.0.0.2}\n- {name: b, protocol: tcp, ip: 10.0.0.2}\n")
	n.start()
	o.await(t, "a healthy, b healthy")
	o.history()
	r.stop()
	eventually(t, "the agent knows", func() bool { return !n.node.Status().Reports.Connected })
	fatal(t, n.node.Register(t.Context(), []registry.Endpoint{program("p")}, 0))
	r.start()
	o.await(t, "a healthy, b healthy, p healthy")
	server.Stop()
	eventually(t, "the agent knows", func() bool { return !n.node.Status().Reports.Connected })
	n.services("services:\n- {name: a, protocol: tcp, ip: 10.0.0.2}\n")
	eventually(t, "the file is read", func() bool { return len(n.node.Status().Endpoints) == 2 })
	server.Restart()
	o.await(t, "a healthy, p healthy")
	wantHistory(t, o, "p healthy", "b is gone")
	fatal(t, n.end())
}

// TestAllProbesFailAtOnce: the node suspects itself, says so, keeps what it
// announced, and recovers by itself.
func TestAllProbesFailAtOnce(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o := observe(t, r)
	n := newNode(t, r)
	var cut atomic.Bool
	backends := []*backend{newBackendCutBy(t, &cut), newBackendCutBy(t, &cut), newBackendCutBy(t, &cut)}
	text := "services:\n"
	for i, b := range backends {
		text += b.probed(string(rune('a' + i)))
	}
	n.services(text)
	n.start()
	o.await(t, "a healthy, b healthy, c healthy")
	o.history()
	cut.Store(true)
	eventually(t, "it suspects itself", func() bool {
		s := n.node.Status()
		return s.Suspect != nil && s.Announcing && strings.Contains(s.Why, "suspects itself")
	})
	claim := []registry.Claim{{Key: backends[0].key("a")}}
	fatal(t, n.node.SetHealth(t.Context(), claim, registry.Draining))
	o.await(t, "a draining, b healthy, c healthy")
	fatal(t, n.node.SetHealth(t.Context(), claim, registry.Healthy))
	o.await(t, "a healthy, b healthy, c healthy")
	for _, e := range n.node.Status().Endpoints {
		if e.Health != "healthy" || e.Probe.OK {
			t.Errorf("the status shows %s as %q, probed well: %v; what was announced last stands", e.Service, e.Health, e.Probe.OK)
		}
	}
	backends[1].back.Store(true)
	eventually(t, "it does not any more", func() bool { return n.node.Status().Suspect == nil })
	o.await(t, "a unhealthy, b healthy, c unhealthy")
	cut.Store(false)
	o.await(t, "a healthy, b healthy, c healthy")
	for _, h := range o.history() {
		if strings.HasPrefix(h, "b ") || strings.HasSuffix(h, "is gone") {
			t.Errorf("clients saw %s", h)
		}
	}
}

func TestConflict(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o := observe(t, r)
	first, second := newNode(t, r), newNode(t, r)
	second.name = "n2"
	first.services("services:\n- {name: a, protocol: tcp, ip: 10.0.0.2}\n")
	second.services("services:\n- {name: a, protocol: tcp, ip: 10.0.0.2}\n- {name: b, protocol: tcp, ip: 10.0.0.2}\n")
	first.start()
	o.await(t, "a healthy")
	second.start()
	o.await(t, "a healthy, b healthy")
	eventually(t, "the second tells of the conflict", func() bool {
		s := second.node.Status()
		return len(s.Endpoints) == 2 && strings.Contains(s.Endpoints[0].Conflict, "n1") && s.Endpoints[1].Conflict == ""
	})
	fatal(t, first.end())
	eventually(t, "the second has it", func() bool {
		s := second.node.Status()
		return s.Endpoints[0].Conflict == ""
	})
}
