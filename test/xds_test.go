package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/test/clients/clientstest"
)

func TestEachKindOfClientIsInstalled(t *testing.T) {
	for _, kind := range clientstest.Kinds {
		t.Run(string(kind), func(t *testing.T) { clientstest.Need(t, kind) })
	}
}

// TestClientsFailOverAndBack: own zone, own region, another region, in each way that
// an endpoint can be gone, and back, without a failed call.
func TestClientsFailOverAndBack(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	back := newBackends(t)
	back.start("zone", "region", "other")
	back.register(a, "echo", "zone", "--zone", "z1")
	back.register(a, "echo", "region", "--zone", "z2")
	back.register(b, "echo", "other", "--zone", "z1")
	eventually(t, "region a has all", func() bool { return len(a.endpoints("echo")) == 3 })
	c := a.callers("echo", "z1", steady)
	c.reach("zone")

	back.register(a, "echo", "zone", "--zone", "z1", "--health", "unhealthy")
	c.reach("region")
	back.drain(a, "echo", nil, "region")
	c.reach("other")
	back.drain(a, "echo", []string{"--undo"}, "region")
	c.reach("region")
	back.register(a, "echo", "zone", "--zone", "z1")
	c.reach("zone")

	back.unregister(a, "echo", "region")
	back.unregister(a, "echo", "zone")
	c.reach("other")
	back.at["zone"].Stop()
	back.at["zone"].Start()
	back.register(a, "echo", "zone", "--zone", "z1")
	c.reach("zone")
	c.stop()
}

// TestDrainUnderLoad drains all endpoints of the own region, and ends them, under 500
// calls a second (case 15).
func TestDrainUnderLoad(t *testing.T) {
	const rate = 500
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	back := newBackends(t)
	back.start("a1", "a2", "a3", "b1")
	for _, name := range []string{"a1", "a2", "a3"} {
		back.register(a, "echo", name)
	}
	back.register(b, "echo", "b1")
	eventually(t, "region a has all", func() bool { return len(a.endpoints("echo")) == 4 })
	for _, kind := range clientstest.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			clientstest.Need(t, kind)
			c := &callers{t: t, all: []*clientstest.Client{a.caller(kind, "echo", "", rate)}}
			c.reach("a1", "a2", "a3")
			back.drain(a, "echo", nil, "a1", "a2", "a3")
			c.reach("b1")
			for _, name := range []string{"a1", "a2", "a3"} {
				back.at[name].Stop()
				back.at[name].Start()
			}
			back.drain(a, "echo", []string{"--undo"}, "a1", "a2", "a3")
			c.reach("a1", "a2", "a3")
			c.stop()
		})
	}
}

// TestOneAddressInTwoRegions: in one network it is one endpoint, the nearer; in two
// the foreign one is called at its gateway, or not at all (case 14). Clients take
// all of it: they see what is registered afterwards.
func TestOneAddressInTwoRegions(t *testing.T) {
	t.Run("one network", func(t *testing.T) { oneAddress(t, "flat", "flat") })
	t.Run("two networks", func(t *testing.T) { oneAddress(t, "net-a", "net-b") })
}

func oneAddress(t *testing.T, networkA, networkB string) {
	regions := fleet(t, "a", "b")
	a := regions[0].registrar(t, "a1", "--network", networkA)
	b := regions[1].registrar(t, "b1", "--network", networkB)
	back := newBackends(t)
	back.start("near", "second", "gateway")
	back.register(a, "echo", "near", "--network", networkA)
	back.register(b, "echo", "near", "--network", networkB)
	eventually(t, "region a has both", func() bool { return len(a.endpoints("echo")) == 2 })
	c := a.callers("echo", "", steady)
	c.reach("near")
	if n := strings.Count(a.aether("xds", "show", "echo"), back.at["near"].Address); n != 1 {
		t.Errorf("the address is %d times in\n%s", n, a.aether("xds", "show", "echo"))
	}

	back.register(a, "echo", "second", "--network", networkA)
	c.reach("near", "second")
	if networkA != networkB {
		back.register(b, "echo", "near", "--network", networkB, "--gateway", "grpc="+back.at["gateway"].Address)
		eventually(t, "the gateway is known", func() bool {
			return strings.Contains(a.aether("xds", "show", "echo"), back.at["gateway"].Address)
		})
		c.reach("near", "second")
		back.drain(a, "echo", nil, "near", "second")
		c.reach("gateway")
	}
	c.stop()
	a.aether("xds", "status") // which fails if a client refused something
}

// TestServiceOfAnotherRegion: what the own region does not have is called where it
// is, and called at home once it is there.
func TestServiceOfAnotherRegion(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	back := newBackends(t)
	back.start("home", "away")
	back.register(b, "echo", "away")
	eventually(t, "region a has it", func() bool { return len(a.endpoints("echo")) == 1 })
	c := a.callers("echo", "", steady)
	c.reach("away")
	back.register(a, "echo", "home")
	c.reach("home")
	back.unregister(a, "echo", "home")
	c.reach("away")
	c.stop()
}

// TestCutOffUnderCalls: regions that do not hear of each other withdraw each other,
// change meanwhile, and are whole again after it; calls in a region go on (case 17).
func TestCutOffUnderCalls(t *testing.T) {
	const changes = 1000
	regions := fleet(t, "a", "b")
	links := []*wantest.Link{wantest.New(t, regions[1].etcd.Endpoint(), 0), wantest.New(t, regions[0].etcd.Endpoint(), 0)}
	regions[0].peers, regions[1].peers = []string{"b=" + links[0].Address()}, []string{"a=" + links[1].Address()}
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	back := newBackends(t)
	back.start("home", "away")
	back.register(a, "echo", "home")
	back.register(b, "echo", "away")
	for _, r := range []*registrar{a, b} {
		eventually(t, "each has both", func() bool { return len(r.endpoints("echo")) == 2 })
	}
	c := a.callers("echo", "", steady)
	c.reach("home")

	cut := time.Now()
	for _, l := range links {
		l.Cut()
	}
	a.awaitState("/v1/regions", "b", "lapsed")
	b.awaitState("/v1/regions", "a", "lapsed")
	t.Logf("withdrawn %v after the cut, with a TTL of %v", time.Since(cut), leaseTTL)
	client := regions[1].etcd.Client(t)
	fill(t, client, "b", changes)
	c.reach("home")

	for _, l := range links {
		l.Heal()
	}
	healed := time.Now()
	eventually(t, "region a has all of region b", func() bool {
		return a.standing("/v1/regions", "b").Endpoints == changes+1
	})
	t.Logf("whole %v after the link healed", time.Since(healed))
	a.awaitState("/v1/regions", "b", "live")
	back.drain(a, "echo", nil, "home")
	c.reach("away")
	back.drain(a, "echo", []string{"--undo"}, "home")
	c.reach("home")
	c.stop()
	if out := fmt.Sprint(a.endpoints("echo")); !strings.Contains(out, "b/b1") {
		t.Errorf("region a serves %s", out)
	}
}

// TestClientsOutliveTheirRegistrar: without it, clients go on with what they had, and
// follow it again when it is back, which by itself moves no call.
func TestClientsOutliveTheirRegistrar(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	back := newBackends(t)
	back.start("home", "away")
	back.register(a, "echo", "home")
	back.register(b, "echo", "away")
	eventually(t, "region a has both", func() bool { return len(a.endpoints("echo")) == 2 })
	c := a.callers("echo", "", steady)
	c.reach("home")
	a.kill()
	c.reach("home")
	a.start()
	for _, client := range c.all {
		eventually(t, fmt.Sprintf("the %s client is back", client.Kind), func() bool {
			return strings.Contains(a.aether("xds", "status"), nodeName(client.Kind, ""))
		})
	}
	c.reach("home")
	back.drain(a, "echo", nil, "home")
	c.reach("away")
	c.stop()
}
