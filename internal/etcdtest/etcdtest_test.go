package etcdtest_test

import (
	"syscall"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
)

func TestServerKeepsItsDataThroughARestart(t *testing.T) {
	s := etcdtest.Start(t)
	c := s.Client(t)
	if _, err := c.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	got, err := c.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Fatalf("after a restart k is %v, want v", got.Kvs)
	}
}

func TestProcessStopsContinuesAndRestarts(t *testing.T) {
	p := etcdtest.StartProcess(t)
	c := p.Client(t)
	p.Signal(syscall.SIGSTOP)
	p.Signal(syscall.SIGCONT)
	if _, err := c.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	p.Restart()
	got, err := p.Client(t).Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 {
		t.Fatal("the process lost its data in a restart")
	}
}
