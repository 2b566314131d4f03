//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/netnstest"
)

const (
	// patience bounds a wait for a condition that no promise bounds.
	patience = 2 * time.Minute
	glance   = 20 * time.Millisecond
)

// process is an aether that runs on a host.
type process struct {
	t    *testing.T
	host *netnstest.Host
	args []string
	log  string
	cmd  *exec.Cmd
}

// newProcess returns one that is not started.
func newProcess(t *testing.T, h *netnstest.Host, args ...string) *process {
	t.Helper()
	p := &process{t: t, host: h, args: args, log: filepath.Join(t.TempDir(), "log")}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			log, err := os.ReadFile(p.log)
			t.Logf("aether %s\n%s%v", strings.Join(p.args, " "), log[max(0, len(log)-5000):], err)
		}
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	cmd := p.host.Command(binary, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd = cmd
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // gone already is as good
		_ = p.cmd.Wait()         // its exit status is the kill
		p.cmd = nil
	}
}

// stop ends the process in order, by that signal.
func (p *process) stop(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("aether %s: %v", strings.Join(p.args, " "), err)
	}
	p.cmd = nil
}

// eventually waits for a condition and returns how long that took.
func eventually(t *testing.T, what string, cond func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
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
	return time.Since(begin)
}
