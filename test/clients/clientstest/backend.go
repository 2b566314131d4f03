package clientstest

import (
	"bufio"
	"io"
	"os/exec"
	"syscall"
	"testing"
)

// Backend is a running backend.
type Backend struct {
	ID, Address string

	tb    testing.TB
	bin   string
	run   Run
	cmd   *exec.Cmd
	stdin io.Closer
}

// Backend starts a backend at an address and waits until it serves. It ends with the
// test at the latest. A nil run means exec.Command.
func (p *Programs) Backend(tb testing.TB, run Run, id, address string) *Backend {
	tb.Helper()
	if run == nil {
		run = exec.Command
	}
	b := &Backend{ID: id, Address: address, tb: tb, bin: p.built("backend"), run: run}
	tb.Cleanup(b.Kill)
	b.Start()
	return b
}

// Start starts it again after Kill or Stop.
func (b *Backend) Start() {
	b.tb.Helper()
	cmd := b.run(b.bin, b.ID, b.Address)
	out, err := cmd.StdoutPipe()
	if err == nil {
		b.stdin, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.tb.Fatalf("start backend %s: %v", b.ID, err)
	}
	b.cmd = cmd
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.tb.Fatalf("backend %s at %s says %q: %v", b.ID, b.Address, line, err)
	}
}

// Kill ends it as kill -9 does.
func (b *Backend) Kill() {
	if b.cmd == nil {
		return
	}
	_ = b.stdin.Close()      // with the process
	_ = b.cmd.Process.Kill() // gone already is as good
	_ = b.cmd.Wait()         // its exit status is the kill
	b.cmd = nil
}

// Stop ends it in order: it finishes what it has.
func (b *Backend) Stop() {
	b.tb.Helper()
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.tb.Fatalf("stop backend %s: %v", b.ID, err)
	}
	if err := b.cmd.Wait(); err != nil {
		b.tb.Errorf("backend %s: %v", b.ID, err)
	}
	_ = b.stdin.Close() // closed by Wait as well
	b.cmd = nil
}
