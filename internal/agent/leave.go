package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

const (
	// DefaultPatience with registrars on the way out.
	DefaultPatience = 10 * time.Second
	// hookKillDelay is how long a hook that was killed may hold its output open.
	hookKillDelay = time.Second
)

// Leave says how a node leaves.
type Leave struct {
	// Grace is how long endpoints drain before they are deregistered.
	Grace time.Duration
	// Hook, unless empty, is a shell command that ends when they have drained, in
	// place of Grace. Output is where it writes.
	Hook   string
	Output io.Writer
	// Keep, unless nil, is asked once: true leaves everything as it is registered,
	// for an agent that comes back soon.
	Keep func() bool
	// Patience bounds the wait for a registrar that takes a report on the way out;
	// 0: DefaultPatience.
	Patience time.Duration
	// Hurry ends the draining at once when it is closed.
	Hurry <-chan struct{}
}

// leave drains what the node has and deregisters it.
func (n *Node) leave(ctx context.Context) error {
	if n.cfg.Leave.Keep != nil && n.cfg.Leave.Keep() {
		n.cfg.Log.Info("stopping; what is registered stays")
		return nil
	}
	if n.enter(draining) > 0 {
		n.cfg.Log.Info("draining", "grace", n.cfg.Leave.Grace, "hook", n.cfg.Leave.Hook)
		if err := n.flush(ctx); err != nil {
			n.cfg.Log.Warn("no registrar knows that this node drains", "error", err)
		}
		n.drained(ctx)
	}
	n.enter(gone)
	if err := n.flush(ctx); err != nil {
		return fmt.Errorf("deregister this node: no registrar took its last report; its endpoints go with the next sweep: %w", err)
	}
	n.cfg.Log.Info("deregistered")
	return nil
}

// enter begins a phase and returns how many endpoints are announced in it.
func (n *Node) enter(p phase) int {
	n.mu.Lock()
	n.phase = p
	n.mu.Unlock()
	n.refresh()
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.announced.Endpoints)
}

func (n *Node) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(n.cfg.Leave.Patience, DefaultPatience))
	defer cancel()
	return n.reporter.Flush(ctx)
}

// drained returns once what drains has had its time.
func (n *Node) drained(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.waitDrained(ctx)
	}()
	select {
	case <-done:
	case <-n.cfg.Leave.Hurry:
		cancel()
		<-done
	}
}

func (n *Node) waitDrained(ctx context.Context) {
	if n.cfg.Leave.Hook == "" {
		select {
		case <-ctx.Done():
		case <-time.After(n.cfg.Leave.Grace):
		}
		return
	}
	hook := exec.CommandContext(ctx, "/bin/sh", "-c", n.cfg.Leave.Hook)
	hook.Stdout, hook.Stderr, hook.WaitDelay = n.cfg.Leave.Output, n.cfg.Leave.Output, hookKillDelay
	// What the shell started ends with it: nothing outlives the agent.
	hook.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	hook.Cancel = func() error { return syscall.Kill(-hook.Process.Pid, syscall.SIGKILL) }
	if err := hook.Run(); err != nil && ctx.Err() == nil {
		n.cfg.Log.Warn("the stop hook failed: going on without it", "error", err)
	}
}
