package test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
)

// Programs register, ask and look names up at their agent alone, and go on doing so
// while every registrar is down, over a restart of the agent too.
func TestAgentServesPrograms(t *testing.T) {
	p := startRegistrar(t, "--data-dir", t.TempDir(), "--embedded-etcd-client-url", "http://"+etcdtest.FreeAddress(t))
	p.register("other", "10.0.0.8", 80)
	names := etcdtest.FreeAddress(t)
	socket := filepath.Join(t.TempDir(), "agent.sock")
	a := newAgent(t, "n1", "10.0.0.1", "--registrar", p.grpc, "--socket", socket, "--dns-address", names, "--zone", "z1").declares("api").start().well()
	at := func(args ...string) string {
		t.Helper()
		r := aether(t, append(args, "--registrar", "unix:"+socket)...)
		if r.code != 0 {
			t.Errorf("aether %s: exit code %d: %s", strings.Join(args, " "), r.code, r.stderr)
		}
		return r.stdout
	}
	at("register", "web", "10.0.0.1", "--port", "http=81")
	p.awaitEndpoints("web", "local/local 10.0.0.1:81")
	resolver := net.Resolver{PreferGo: true, Dial: resolveAt(names)}
	knows := func(service, ip string) func() bool {
		return func() bool {
			found, err := resolver.LookupHost(t.Context(), service+".aether.")
			return err == nil && len(found) == 1 && found[0] == ip && strings.Contains(at("endpoints", service), ip)
		}
	}
	eventually(t, "the agent knows what it registered", knows("web", "10.0.0.1"))
	eventually(t, "the agent knows what others did", knows("other", "10.0.0.8"))
	at("drain", "web", "10.0.0.1")
	eventually(t, "it drains", func() bool { return strings.Contains(p.aether("endpoints", "web"), "draining") })
	at("drain", "web", "10.0.0.1", "--undo")
	eventually(t, "it serves", func() bool { return strings.Contains(p.aether("endpoints", "web"), "healthy") })

	p.kill()
	a.signal(syscall.SIGHUP)
	a.start()
	eventually(t, "the agent knows it from its disk", knows("other", "10.0.0.8"))
	at("unregister", "web", "10.0.0.1")
	p.start()
	p.awaitEndpoints("web")
	p.awaitEndpoints("api", "local/local 10.0.0.1:80")
}

// resolveAt sends every question to one address.
func resolveAt(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}
