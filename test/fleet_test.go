package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
)

const (
	leaseTTL = 5 * time.Second
	// patience is how long a condition may take on a busy machine.
	patience = time.Minute
	glance   = 20 * time.Millisecond
)

// region is an etcd with the registrars that share it.
type region struct {
	name string
	etcd *etcdtest.Process
	// peers are --peer-etcd entries.
	peers []string
}

// fleet starts an etcd for each region; each region knows all others.
func fleet(t *testing.T, names ...string) []*region {
	t.Helper()
	regions := make([]*region, len(names))
	for i, name := range names {
		regions[i] = &region{name: name, etcd: etcdtest.StartProcess(t)}
	}
	for _, r := range regions {
		for _, o := range regions {
			if o != r {
				r.peers = append(r.peers, o.name+"="+o.etcd.Endpoint())
			}
		}
	}
	return regions
}

// registrar is one process of `aether registrar`.
type registrar struct {
	t          *testing.T
	args       []string
	grpc, http string
	log        string
	cmd        *exec.Cmd
}

// registrar starts one for a cluster of the region and waits until it is ready.
func (r *region) registrar(t *testing.T, cluster string, flags ...string) *registrar {
	t.Helper()
	args := []string{"--region", r.name, "--cluster-name", cluster, "--etcd-endpoints", r.etcd.Endpoint(), "--lease-ttl", leaseTTL.String()}
	for _, p := range r.peers {
		args = append(args, "--peer-etcd", p)
	}
	return startRegistrar(t, append(args, flags...)...)
}

func startRegistrar(t *testing.T, args ...string) *registrar {
	t.Helper()
	p := newRegistrar(t, args...)
	p.start()
	return p
}

// newRegistrar returns one that is not started, with addresses of its own.
func newRegistrar(t *testing.T, args ...string) *registrar {
	t.Helper()
	p := &registrar{
		t: t, grpc: etcdtest.FreeAddress(t), http: etcdtest.FreeAddress(t),
		log: filepath.Join(t.TempDir(), "registrar.log"),
	}
	p.args = append([]string{"registrar", "--grpc-address", p.grpc, "--http-address", p.http}, args...)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			log, _ := os.ReadFile(p.log)
			t.Logf("aether %s\n%s", strings.Join(p.args, " "), log)
		}
	})
	return p
}

// start runs the process, again if it ended, and waits until it is ready.
func (p *registrar) start() {
	p.t.Helper()
	p.launch()
	eventually(p.t, "the registrar is ready", func() bool {
		resp, err := http.Get("http://" + p.http + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// launch runs the process.
func (p *registrar) launch() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(binary, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process as kill -9 does.
func (p *registrar) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // gone already is as good
		_ = p.cmd.Wait()         // its exit status is the kill
		p.cmd = nil
	}
}

// stop ends the process in order and returns its exit code.
func (p *registrar) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	_ = p.cmd.Wait() // the code says it
	code := p.cmd.ProcessState.ExitCode()
	p.cmd = nil
	return code
}

// aether runs a client command against the registrar and returns its output.
func (p *registrar) aether(args ...string) string {
	p.t.Helper()
	r := aether(p.t, append(args, "--registrar", p.grpc)...)
	if r.code != 0 {
		p.t.Fatalf("aether %s: exit code %d: %s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

func (p *registrar) register(service, ip string, port int, flags ...string) {
	p.t.Helper()
	p.aether(append([]string{"register", service, ip, "--port", fmt.Sprintf("http=%d", port)}, flags...)...)
}

// endpoint is the part of an endpoint's JSON that tests look at.
type endpoint struct {
	IP    string `json:"ip"`
	Ports []struct {
		Number int `json:"number"`
	} `json:"ports"`
	Region  string `json:"region"`
	Cluster string `json:"cluster"`
}

func (e endpoint) String() string {
	port := 0
	if len(e.Ports) > 0 {
		port = e.Ports[0].Number
	}
	return fmt.Sprintf("%s/%s %s:%d", e.Region, e.Cluster, e.IP, port)
}

// endpoints is what the registrar serves of a service, over HTTP.
func (p *registrar) endpoints(service string) []string {
	p.t.Helper()
	var answer struct {
		Endpoints []endpoint `json:"endpoints"`
	}
	p.get("/v1/services/"+service+"/endpoints", &answer)
	out := make([]string, len(answer.Endpoints))
	for i, e := range answer.Endpoints {
		out[i] = e.String()
	}
	return out
}

// standing is what a registrar says of a region or a peer.
type standing struct {
	Region    string `json:"region"`
	State     string `json:"state"`
	Endpoints int    `json:"endpoints"`
	Age       string `json:"age"`
	LastError string `json:"last_error"`
}

// standing asks at /v1/regions or /v1/peers; the zero value is for a name that is
// not there.
func (p *registrar) standing(path, name string) standing {
	p.t.Helper()
	var answer struct{ Regions, Peers []standing }
	p.get(path, &answer)
	for _, x := range append(answer.Regions, answer.Peers...) {
		if x.Region == name {
			return x
		}
	}
	return standing{}
}

func (p *registrar) get(path string, into any) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.http + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return // a service without endpoints
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		p.t.Fatalf("GET %s: %s: %v", path, resp.Status, err)
	}
}

// metrics is what Prometheus would read.
func (p *registrar) metrics() string {
	p.t.Helper()
	resp, err := http.Get("http://" + p.http + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// awaitEndpoints waits until the registrar serves exactly these.
func (p *registrar) awaitEndpoints(service string, want ...string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s serves %v of %s", p.http, want, service), func() bool {
		return strings.Join(p.endpoints(service), "\n") == strings.Join(want, "\n")
	})
}

func (p *registrar) awaitState(path, name, want string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s says that %s is %s", p.http, name, want), func() bool { return p.standing(path, name).State == want })
}

// result is how a command ended.
type result struct {
	code           int
	stdout, stderr string
}

// aether runs a command to its end.
func aether(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "AETHER_REGISTRAR=")
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v it is still not so that %s", patience, what)
		}
	}
}

// stored is one key of an etcd without its value's meaning.
type stored struct {
	key, value       string
	created, changed int64
	version          int64
	lease            clientv3.LeaseID
}

// keys lists what an etcd holds under a prefix.
func keys(t *testing.T, c *clientv3.Client, prefix string) []stored {
	t.Helper()
	resp, err := c.Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	out := make([]stored, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		out[i] = stored{
			key: string(kv.Key), value: string(kv.Value), created: kv.CreateRevision,
			changed: kv.ModRevision, version: kv.Version, lease: clientv3.LeaseID(kv.Lease),
		}
	}
	return out
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
