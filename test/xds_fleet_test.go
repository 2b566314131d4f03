package test

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/test/clients/clientstest"
)

const (
	// callDeadline leaves room for a machine that is busy with other tests.
	callDeadline = 10 * time.Second
	// steady is a rate that does not keep the machine from its other work.
	steady = 100
)

// backends are those of one service, each at a loopback address of its own.
type backends struct {
	t    *testing.T
	last int
	at   map[string]*clientstest.Backend
}

func newBackends(t *testing.T) *backends {
	return &backends{t: t, at: map[string]*clientstest.Backend{}}
}

// start starts some, by name.
func (b *backends) start(names ...string) {
	b.t.Helper()
	for _, name := range names {
		_, port, err := net.SplitHostPort(etcdtest.FreeAddress(b.t))
		if err != nil {
			b.t.Fatal(err)
		}
		b.last++
		b.at[name] = programs.Backend(b.t, nil, name, fmt.Sprintf("127.0.0.%d:%s", b.last+1, port))
	}
}

// ip is where a backend listens.
func (b *backends) ip(name string) string {
	host, _, _ := strings.Cut(b.at[name].Address, ":")
	return host
}

func (b *backends) port(name string) string {
	_, port, _ := strings.Cut(b.at[name].Address, ":")
	return port
}

// register registers a backend, or replaces what is registered of it.
func (b *backends) register(r *registrar, service, name string, flags ...string) {
	b.t.Helper()
	r.aether(append([]string{"register", service, b.ip(name), "--protocol", "grpc", "--port", "grpc=" + b.port(name)}, flags...)...)
}

func (b *backends) unregister(r *registrar, service, name string) {
	b.t.Helper()
	r.aether("unregister", service, b.ip(name), "--protocol", "grpc")
}

func (b *backends) drain(r *registrar, service string, flags []string, names ...string) {
	b.t.Helper()
	args := []string{"drain", service}
	for _, name := range names {
		args = append(args, b.ip(name))
	}
	r.aether(append(append(args, "--protocol", "grpc"), flags...)...)
}

// callers are clients of each kind in one place.
type callers struct {
	t   *testing.T
	all []*clientstest.Client
}

// callers starts a client of each kind that is installed. CI has all: see
// TestEachKindOfClientIsInstalled.
func (p *registrar) callers(service, zone string, rate int) *callers {
	c := &callers{t: p.t}
	for _, kind := range clientstest.Installed(p.t) {
		c.all = append(c.all, p.caller(kind, service, zone, rate))
	}
	return c
}

// caller starts a client in the registrar's region, with nothing but a bootstrap.
func (p *registrar) caller(kind clientstest.Kind, service, zone string, rate int) *clientstest.Client {
	p.t.Helper()
	bootstrap := filepath.Join(p.t.TempDir(), "bootstrap.json")
	p.aether("xds", "bootstrap", "--node", nodeName(kind, zone), "--zone", zone, "--file", bootstrap)
	return programs.Client(p.t, clientstest.Options{
		Kind: kind, Target: "xds:///" + service, Rate: rate, Deadline: callDeadline, Bootstrap: bootstrap,
	})
}

// nodeName is what a client calls itself at its registrar.
func nodeName(kind clientstest.Kind, zone string) string {
	return fmt.Sprintf("%s-client-%s", kind, zone)
}

// reach waits until the calls of each client are answered by those, each of them,
// and nobody else.
func (c *callers) reach(names ...string) {
	c.t.Helper()
	then := time.Now()
	want := slices.Sorted(slices.Values(names))
	for _, client := range c.all {
		eventually(c.t, fmt.Sprintf("calls of the %s client reach %v", client.Kind, want), func() bool {
			return slices.Equal(slices.Sorted(maps.Keys(client.Recent(then))), want)
		})
		c.t.Logf("the %s client reached %v after %v at the latest", client.Kind, want, time.Since(then).Round(time.Millisecond))
	}
}

// stop ends the clients, of whose calls none may have failed.
func (c *callers) stop() {
	c.t.Helper()
	for _, client := range c.all {
		tally := client.Stop()
		if len(tally.Failed) > 0 || tally.Calls() == 0 {
			c.t.Errorf("the %s client: %v", client.Kind, tally)
		}
	}
}
