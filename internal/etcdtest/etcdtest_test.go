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

func TestAClusterIsRestoredAndLedByAnother(t *testing.T) {
	c := etcdtest.StartCluster(t, 3)
	client, ctx := c.Client(t), t.Context()
	if _, err := client.Put(ctx, "k", "old"); err != nil {
		t.Fatal(err)
	}
	backup := c.Backup()
	if _, err := client.Put(ctx, "k", "new"); err != nil {
		t.Fatal(err)
	}
	was := c.Leader()
	if is := c.MoveLeader(); is == was || c.Leader() != is {
		t.Errorf("member %d leads after a move from %d to %d", c.Leader(), was, is)
	}
	backup.Restore()
	got, err := client.Get(ctx, "k")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "old" {
		t.Errorf("after the restore: %v, %v", got, err)
	}
}
