package test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// fewAgents take half a minute; AETHER_AGENTS=50 is what the design asks for.
const fewAgents = 6

// chaos is a cluster whose parts fail at random. Each node has a service that is
// well all the time, steady, and one whose endpoints come and go, moving.
type chaos struct {
	t          *testing.T
	rand       *rand.Rand
	etcd       *etcdtest.Process
	registrars []*registrar
	links      []*wantest.Link
	agents     []*agent
	moves      []bool
}

// TestAgentsThroughChaos: killed, stopped and cut off, with files that change and
// registrars and an etcd that go away, agents end with the registry and each
// agent's view exactly right, and what was well all the time never left a view.
func TestAgentsThroughChaos(t *testing.T) {
	c := startChaos(t, number(t, "AETHER_AGENTS", fewAgents), uint64(number(t, "AETHER_SEED", 1)))
	c.awaitRight()
	lost := c.watchSteady()
	for range 3 * len(c.agents) {
		c.fault()
	}
	c.awaitRight()
	if gone := lost(); len(gone) > 0 {
		t.Errorf("what was well all the time left a view: %v", gone)
	}
}

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

func startChaos(t *testing.T, nodes int, seed uint64) *chaos {
	t.Helper()
	t.Logf("AETHER_SEED=%d", seed)
	a := &region{name: "a", etcd: fleet(t, "a")[0].etcd}
	c := &chaos{t: t, rand: rand.New(rand.NewPCG(seed, seed)), etcd: a.etcd}
	var addresses []string
	for range 2 {
		r := a.registrar(t, "c1", "--presence-ttl", "5s", "--sweep-grace", "60s")
		l := wantest.New(t, r.grpc, 0)
		c.registrars, c.links = append(c.registrars, r), append(c.links, l)
		addresses = append(addresses, l.Address())
	}
	for n := range nodes {
		agent := newAgent(t, fmt.Sprint("n", n), fmt.Sprintf("10.0.0.%d", n+1), "--registrar", strings.Join(addresses, ","))
		c.agents, c.moves = append(c.agents, agent.declares("steady").start()), append(c.moves, false)
	}
	return c
}

// fault does one thing to one part, and ends it.
func (c *chaos) fault() {
	n := c.rand.IntN(len(c.agents))
	r, l := c.registrars[c.rand.IntN(2)], c.links[c.rand.IntN(2)]
	switch c.rand.IntN(10) {
	case 0, 1:
		c.agents[n].signal(syscall.SIGKILL)
		c.agents[n].start()
	case 2:
		c.agents[n].signal(syscall.SIGHUP)
		c.agents[n].start()
	case 3:
		c.freeze(c.agents[n].cmd.Process)
	case 4, 5, 6:
		c.move(n)
	case 7:
		l.Cut()
		c.pause()
		l.Heal()
	case 8:
		if c.rand.IntN(2) == 0 {
			c.freeze(r.cmd.Process)
			return
		}
		r.kill()
		r.start()
	default:
		c.etcd.Kill()
		c.move(n)
		c.pause()
		c.etcd.Restart()
	}
}

// move changes a node's file, sometimes by way of half of it.
func (c *chaos) move(n int) {
	c.t.Helper()
	if c.rand.IntN(3) == 0 {
		write(c.t, c.agents[n].dir+"/services.yaml", "services:\n- {name: stea")
	}
	if c.moves[n] = !c.moves[n]; c.moves[n] {
		c.agents[n].declares("steady", "moving")
	} else {
		c.agents[n].declares("steady")
	}
}

func (c *chaos) freeze(p *os.Process) {
	c.t.Helper()
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := p.Signal(s); err != nil {
			c.t.Fatal(err)
		}
		c.pause()
	}
}

// pause is how long a fault lasts.
func (c *chaos) pause() { <-time.After(time.Duration(c.rand.IntN(1500)) * time.Millisecond) }

// awaitRight waits until registrars and agents show exactly what the files say.
func (c *chaos) awaitRight() {
	c.t.Helper()
	var steady, moving []string
	for n := range c.agents {
		ip := fmt.Sprintf("10.0.0.%d", n+1)
		steady = append(steady, ip)
		if c.moves[n] {
			moving = append(moving, ip)
		}
	}
	for _, r := range c.registrars {
		c.awaitAt(r.http, steady, moving)
	}
	for _, a := range c.agents {
		c.awaitAt(a.http, steady, moving)
	}
}

func (c *chaos) awaitAt(address string, steady, moving []string) {
	c.t.Helper()
	eventually(c.t, address+" shows what the files say", func() bool {
		s, errSteady := healthyIPs(address, "steady")
		m, errMoving := healthyIPs(address, "moving")
		return errSteady == nil && errMoving == nil && slices.Equal(s, steady) && slices.Equal(m, moving)
	})
}

// healthyIPs are what a registrar or an agent serves over HTTP.
func healthyIPs(address, service string) (ips []string, err error) {
	resp, err := http.Get("http://" + address + "/v1/services/" + service + "/endpoints")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Endpoints []struct{ IP, Health string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	for _, e := range answer.Endpoints {
		if e.Health == "HEALTH_HEALTHY" {
			ips = append(ips, e.IP)
		}
	}
	slices.SortFunc(ips, byNumber)
	return ips, nil
}

// byNumber orders addresses by their last part.
func byNumber(a, b string) int {
	last := func(s string) int {
		n, err := strconv.Atoi(s[strings.LastIndexByte(s, '.')+1:])
		if err != nil {
			return -1
		}
		return n
	}
	return last(a) - last(b)
}

// watchSteady follows the steady service at each registrar and each agent, and
// returns a function that ends it and tells what left, or was not healthy.
func (c *chaos) watchSteady() (lost func() []string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var gone []string
	var watches sync.WaitGroup
	watch := func(target string) {
		client, err := remote.New(target)
		if err != nil {
			c.t.Fatal(err)
		}
		watches.Go(func() {
			defer client.Close()
			_ = client.Follow(ctx, registry.Query{Services: []string{"steady"}}, func(e registry.Event) error { // ends with ctx
				if e.Kind == registry.Delete || e.Kind == registry.Put && !e.Endpoint.Health.Serving() {
					mu.Lock()
					defer mu.Unlock()
					gone = append(gone, fmt.Sprintf("%v of %v at %s at %v", e.Kind, e.Endpoint.IP, target, time.Now().Format(time.TimeOnly)))
				}
				return nil
			}, nil)
		})
	}
	for _, r := range c.registrars {
		watch(r.grpc)
	}
	for _, a := range c.agents {
		watch(a.grpc)
	}
	lost = sync.OnceValue(func() []string {
		cancel()
		watches.Wait()
		return gone
	})
	c.t.Cleanup(func() { lost() })
	return lost
}
