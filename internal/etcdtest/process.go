package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const serverModule = "go.etcd.io/etcd/server/v3"

// stopTimeout is what an orderly stop may take: etcd waits for its clients'
// streams.
const stopTimeout = time.Second

// Process is a real etcd in a process of its own.
type Process struct {
	tb testing.TB
	// host is where it runs; nil: here.
	host     Host
	endpoint string
	peerURL  string
	dir      string
	args     []string
	cmd      *exec.Cmd
	log      *os.File
}

// StartProcess builds the etcd binary, once per version into the user's cache,
// and starts one member of it. Further flags of etcd may be given.
func StartProcess(tb testing.TB, flags ...string) *Process {
	tb.Helper()
	return StartCluster(tb, 1, flags...).Member(0)
}

// newProcess makes a process that is not started yet.
func newProcess(tb testing.TB, name, endpoint, peer string) *Process {
	tb.Helper()
	dir := tb.TempDir()
	client, peer := "http://"+endpoint, "http://"+peer
	log, err := os.Create(filepath.Join(dir, "etcd.log"))
	if err != nil {
		tb.Fatal(err)
	}
	p := &Process{
		tb:       tb,
		endpoint: endpoint,
		peerURL:  peer,
		dir:      filepath.Join(dir, "data"),
		log:      log,
	}
	p.args = []string{
		"--name", name, "--data-dir", p.dir,
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--unsafe-no-fsync", "--log-level", "error",
	}
	tb.Cleanup(func() {
		p.Kill()
		_ = log.Close()
	})
	return p
}

// Endpoint is the address of the etcd's clients, as host:port.
func (p *Process) Endpoint() string { return p.endpoint }

// PID is the number of the process, which runs.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Client returns a new client, closed when the test ends.
func (p *Process) Client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	return p.client(tb, p.endpoint)
}

// client returns a new client of endpoints that connects from where p runs.
func (p *Process) client(tb testing.TB, endpoints ...string) *clientv3.Client {
	tb.Helper()
	if p.host == nil {
		return NewClient(tb, endpoints...)
	}
	return newClient(tb, endpoints, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return p.host.DialContext(ctx, "tcp", address)
	}))
}

// Signal sends a signal: SIGSTOP and SIGCONT make it hang and go on. A process
// stops some time after SIGSTOP was sent: Signal returns once it has. One that
// is stopped must not be sent another SIGSTOP.
func (p *Process) Signal(s syscall.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.tb.Fatalf("signal etcd with %v: %v", s, err)
	}
	if s != syscall.SIGSTOP {
		return
	}
	if err := waitStopped(p.cmd.Process.Pid); err != nil {
		p.tb.Fatalf("stop etcd: %v", err)
	}
}

// waitStopped returns once the child pid has stopped, which is told once for
// each stop.
func waitStopped(pid int) error {
	for {
		var state syscall.WaitStatus
		_, err := syscall.Wait4(pid, &state, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case state.Stopped():
			return nil
		default:
			return fmt.Errorf("process %d has ended", pid)
		}
	}
}

// Kill kills the process as kill -9 does and waits until it is gone.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // gone already is as good
	_ = p.cmd.Wait()         // its exit status is the kill
	p.cmd = nil
}

// Stop ends the process as an operator does, with SIGTERM, and kills it if that
// takes it longer than stopTimeout. It must not be stopped by SIGSTOP.
func (p *Process) Stop() {
	p.tb.Helper()
	if p.cmd == nil {
		return
	}
	p.Signal(syscall.SIGTERM)
	process := p.cmd.Process
	kill := time.AfterFunc(stopTimeout, func() { _ = process.Kill() }) // gone already is as good
	_ = p.cmd.Wait()                                                   // its exit status says nothing
	kill.Stop()
	p.cmd = nil
}

// Restart kills the process if it runs, starts it on the same data and address,
// and waits until it serves.
func (p *Process) Restart() {
	p.tb.Helper()
	p.Launch()
	p.wait()
}

// Launch is Restart that does not wait: members that are away may be needed for it
// to serve.
func (p *Process) Launch() {
	p.tb.Helper()
	p.Kill()
	cmd := p.command(Binary(p.tb), p.args...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		p.tb.Fatalf("start etcd: %v", err)
	}
	p.cmd = cmd
}

func (p *Process) command(name string, args ...string) *exec.Cmd {
	if p.host == nil {
		return exec.Command(name, args...)
	}
	return p.host.Command(name, args...)
}

// wait waits until the process answers a linearizable read.
func (p *Process) wait() {
	p.tb.Helper()
	client := p.Client(p.tb)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		attempt, stop := context.WithTimeout(ctx, time.Second)
		_, err := client.Get(attempt, "/")
		stop()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			logs, _ := os.ReadFile(p.log.Name())
			p.tb.Fatalf("etcd at %s does not serve: %v\n%s", p.endpoint, err, logs)
		}
	}
}

var binary = sync.OnceValues(buildBinary)

// Binary returns the path of the etcd binary of the version in go.mod.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, err := binary()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func buildBinary() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	version, err := serverVersion()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "aether", "etcd-"+version, "etcd")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fmt.Fprintf(os.Stderr, "building etcd into %s (once)\n", path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("make cache directory: %w", err)
	}
	// Two test binaries may build at once: the rename makes the last one win.
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	if out, err := exec.Command("go", "build", "-o", part, serverModule).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build etcd: %w\n%s", err, out)
	}
	if err := os.Rename(part, path); err != nil {
		return "", fmt.Errorf("install etcd: %w", err)
	}
	return path, nil
}

func serverVersion() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", serverModule).Output()
	if err != nil {
		return "", fmt.Errorf("find version of %s: %w", serverModule, err)
	}
	return strings.TrimSpace(string(out)), nil
}
