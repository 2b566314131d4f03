package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
)

const oneService = "services:\n- {name: a, protocol: tcp, ip: 10.0.0.2}\n"

// TestLeaving: what a node has drains, and goes once the hook has returned.
func TestLeaving(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, n := observe(t, r), newNode(t, r)
	signal := filepath.Join(t.TempDir(), "go")
	n.leave = Leave{Hook: "while ! test -e " + signal + "; do sleep 0.01; done", Grace: time.Hour}
	n.services(oneService)
	n.start()
	o.await(t, "a healthy")
	ended := make(chan error, 1)
	go func() { ended <- n.end() }()
	o.await(t, "a draining")
	fatal(t, os.WriteFile(signal, nil, 0o600))
	fatal(t, <-ended)
	o.await(t, "")
	wantHistory(t, o, "a healthy", "a draining", "a is gone")
}

func TestHurry(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	for name, leave := range map[string]Leave{"grace": {Grace: time.Hour}, "hook": {Hook: "sleep 3600"}} {
		t.Run(name, func(t *testing.T) {
			o, n := observe(t, r), newNode(t, r)
			hurry := make(chan struct{})
			leave.Hurry = hurry
			n.leave = leave
			n.services(oneService)
			n.start()
			o.await(t, "a healthy")
			ended := make(chan error, 1)
			go func() { ended <- n.end() }()
			o.await(t, "a draining")
			close(hurry)
			fatal(t, <-ended)
			o.await(t, "")
		})
	}
}

// TestKilledWhileDraining: the next agent serves again what its predecessor, and
// nobody else, began to drain.
func TestKilledWhileDraining(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, n := observe(t, r), newNode(t, r)
	n.services(oneService)
	n.leave.Keep = func() bool { return true }
	n.start()
	o.await(t, "a healthy")
	n.node.enter(draining)
	o.await(t, "a draining")
	fatal(t, n.end())
	n.start()
	o.await(t, "a healthy")
	wantHistory(t, o, "a healthy", "a draining", "a healthy")
}

func TestLeavingWithoutARegistrar(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	n := newNode(t, r)
	n.leave.Patience = time.Millisecond
	n.services(oneService)
	n.start()
	eventually(t, "it reports", func() bool { return n.node.Status().Reports.Connected && n.node.Status().Announcing })
	r.stop()
	if err := n.end(); err == nil {
		t.Error("the node could not deregister, and did not say so")
	}
}

// TestHookEndsWhole: when a hook is cut short, so is what its shell has started.
func TestHookEndsWhole(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, n := observe(t, r), newNode(t, r)
	pid, hurry := filepath.Join(t.TempDir(), "pid"), make(chan struct{})
	n.leave = Leave{Hook: "sleep 3600 & echo $! > " + pid + ".new; mv " + pid + ".new " + pid + "; wait", Hurry: hurry}
	n.services(oneService)
	n.start()
	o.await(t, "a healthy")
	ended := make(chan error, 1)
	go func() { ended <- n.end() }()
	var child int
	eventually(t, "the hook runs", func() bool {
		text, err := os.ReadFile(pid)
		if err == nil {
			child, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	close(hurry)
	fatal(t, <-ended)
	eventually(t, "its child is gone", func() bool { return !runs(child) })
}

// runs tells whether a process is there and no zombie, whose parent may be slow.
func runs(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}
