package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/internal/etcdtest"
)

// agent is one process of `aether agent`, with a directory of services.
type agent struct {
	t              *testing.T
	dir, http, log string
	args           []string
	cmd            *exec.Cmd
}

// newAgent returns one that is not started, whose services are at 10.0.0.n.
func newAgent(t *testing.T, node, ip string, flags ...string) *agent {
	t.Helper()
	a := &agent{t: t, dir: t.TempDir(), http: etcdtest.FreeAddress(t), log: filepath.Join(t.TempDir(), "agent.log")}
	a.args = append([]string{
		"agent", "--node", node, "--ip", ip, "--sources", a.dir, "--state-dir", t.TempDir(),
		"--http-address", a.http, "--grpc-address", etcdtest.FreeAddress(t), "--drain-grace", "0s",
	}, flags...)
	t.Cleanup(func() {
		a.signal(syscall.SIGKILL)
		if t.Failed() {
			log, _ := os.ReadFile(a.log)
			t.Logf("aether %s\n%s", strings.Join(a.args, " "), log)
		}
	})
	return a
}

// declares writes the file of services, each with a port 80.
func (a *agent) declares(services ...string) *agent {
	a.t.Helper()
	text := "services: []"
	if len(services) > 0 {
		text = "services:\n"
	}
	for _, s := range services {
		text += "- {name: " + s + ", protocol: http, ports: {http: 80}}\n"
	}
	path := filepath.Join(a.dir, "services.yaml")
	write(a.t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		a.t.Fatal(err)
	}
	return a
}

func (a *agent) start() *agent {
	a.t.Helper()
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	a.cmd = exec.Command(binary, a.args...)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	return a
}

// signal ends the process and returns its exit code.
func (a *agent) signal(s syscall.Signal) int {
	if a.cmd == nil {
		return 0
	}
	_ = a.cmd.Process.Signal(s) // gone already is as good
	_ = a.cmd.Wait()            // the code says it
	code := a.cmd.ProcessState.ExitCode()
	a.cmd = nil
	return code
}

// well waits until the agent says that all is well.
func (a *agent) well() *agent {
	a.t.Helper()
	eventually(a.t, "the agent is well", func() bool { return aether(a.t, "agent", "status", "--agent", a.http).code == 0 })
	return a
}

// Agents are killed, restarted, stopped and lose a registrar: in the end the
// registry is right, and what was well the whole time was never written again.
func TestAgents(t *testing.T) {
	a := &region{name: "a", etcd: fleet(t, "a")[0].etcd}
	flags := []string{"--presence-ttl", "2s", "--sweep-grace", "4s"}
	first, second := a.registrar(t, "c1", flags...), a.registrar(t, "c1", flags...)
	registrars := []string{"--registrar", first.grpc + "," + second.grpc}
	n1 := newAgent(t, "n1", "10.0.0.1", registrars...).declares("api", "db").start().well()
	n2 := newAgent(t, "n2", "10.0.0.2", registrars...).declares("api").start().well()
	n3 := newAgent(t, "n3", "10.0.0.3", registrars...).declares("api").start().well()
	second.awaitEndpoints("api", served("c1", "10.0.0.1", "10.0.0.2", "10.0.0.3")...)
	second.awaitEndpoints("db", served("c1", "10.0.0.1")...)
	etcd := etcdtest.NewClient(t, a.etcd.Endpoint())
	ofFirst := func() (out []stored) {
		for _, k := range keys(t, etcd, "/aether/v1/regions/a/") {
			if strings.HasSuffix(k.key, "/10.0.0.1") {
				out = append(out, k)
			}
		}
		return out
	}
	before := ofFirst()

	n1.signal(syscall.SIGKILL)
	n1.start().well()
	if code := n1.signal(syscall.SIGHUP); code != 0 {
		t.Errorf("after SIGHUP the agent ends with %d", code)
	}
	n1.start().well()
	first.kill()
	if code := n2.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("after SIGTERM the agent ends with %d", code)
	}
	n3.signal(syscall.SIGKILL)
	second.awaitEndpoints("api", served("c1", "10.0.0.1")...)
	n1.well()
	if after := ofFirst(); !slices.Equal(before, after) {
		t.Errorf("what was well all the time was %v, and is %v", before, after)
	}

	n1.declares("api")
	second.awaitEndpoints("db")
	n1.declares()
	second.awaitEndpoints("api")
}

// A node's certificate lets it report itself, and nobody else.
func TestAgentIdentity(t *testing.T) {
	ca := certtest.New(t)
	ca.Server("server")
	ca.Client("reader")
	ca.Workload("n1", "/c1/node/n1")
	policy := filepath.Join(t.TempDir(), "auth.yaml")
	write(t, policy, "rules:\n- role: reader\n  identities: [cn:reader]\n- role: node\n  identities: ['spiffe://example.org/*/node/{node}']\n")
	p := newRegistrar(t, "--data-dir", t.TempDir(), "--embedded-etcd-client-url", "http://127.0.0.1:0", "--auth", policy,
		"--tls-cert", ca.Cert("server"), "--tls-key", ca.Key("server"), "--tls-client-ca", ca.CA())
	p.launch()
	flags := []string{"--registrar", p.grpc, "--tls-ca", ca.CA(), "--tls-cert", ca.Cert("n1"), "--tls-key", ca.Key("n1")}
	newAgent(t, "n1", "10.0.0.1", flags...).declares("api").start().well()
	as := []string{"--registrar", p.grpc, "--tls-ca", ca.CA(), "--tls-cert", ca.Cert("reader"), "--tls-key", ca.Key("reader")}
	if r := aether(t, append([]string{"endpoints", "api"}, as...)...); r.code != 0 || !strings.Contains(r.stdout, "n1") {
		t.Errorf("the node's endpoint is not there: %s%s", r.stdout, r.stderr)
	}
	n2 := newAgent(t, "n2", "10.0.0.2", flags...).declares("api").start()
	eventually(t, "the other node is told why it may not", func() bool {
		r := aether(t, "agent", "status", "--agent", n2.http)
		return r.code == 1 && strings.Contains(r.stderr, "is node n1: it may not write endpoints of node n2")
	})
}
