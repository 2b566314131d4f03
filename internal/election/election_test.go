package election_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/aether-federation/aether/internal/election"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
)

const prefix = "/elections/role/"

// candidate campaigns until it is stopped.
type candidate struct {
	stop    func()
	elected chan *election.Leadership
	ended   chan struct{}
}

func campaign(t *testing.T, s *etcdtest.Server, value string, release <-chan error) candidate {
	t.Helper()
	return campaignWith(t, s.Client(t), value, release)
}

func campaignWith(t *testing.T, client *clientv3.Client, value string, release <-chan error) candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := candidate{elected: make(chan *election.Leadership), ended: make(chan struct{}, 10)}
	done := make(chan struct{})
	cfg := election.Config{Client: client, Prefix: prefix, TTL: election.MinTTL, Value: value, Log: slog.New(slog.DiscardHandler)}
	go func() {
		defer close(done)
		_ = election.Run(ctx, cfg, func(ctx context.Context, l *election.Leadership) error {
			c.elected <- l
			defer func() { c.ended <- struct{}{} }()
			select {
			case err := <-release:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}) // it returns ctx's error, by its contract
	}()
	c.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(c.stop)
	return c
}

func TestOneLeadsAndTheNextFollowsAtOnce(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	s := etcdtest.Start(t)
	first := campaign(t, s, "first", nil)
	leader := <-first.elected
	if err := leader.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := leader.Publish(t.Context(), "news"); err != nil {
		t.Fatal(err)
	}
	second := campaign(t, s, "second", nil)
	value, elected, err := election.Leader(t.Context(), s.Client(t), prefix)
	if err != nil || !elected || value != "news" {
		t.Fatalf("leader's value is %q, %v, %v", value, elected, err)
	}
	first.stop()
	<-second.elected
	if err := leader.Verify(t.Context()); err == nil {
		t.Error("the former leader still has proof of its leadership")
	}
}

func TestARoleThatReturnsIsGivenUpAndTakenAgain(t *testing.T) {
	s := etcdtest.Start(t)
	release := make(chan error)
	c := campaign(t, s, "it", release)
	<-c.elected
	release <- errors.New("had enough")
	<-c.elected
}

func TestLeadershipEndsWithItsSession(t *testing.T) {
	s := etcdtest.Start(t)
	c := campaign(t, s, "it", nil)
	<-c.elected
	s.Stop()
	select {
	case <-c.ended:
	case <-time.After(time.Minute):
		t.Fatal("it still leads although its etcd is gone")
	}
	s.Restart()
	<-c.elected
}

// The way to etcd by which a leader's session is kept hangs, and the client takes
// another. The role is lost once, and no more: the next session does not depend on
// what hangs.
func TestASessionThatHangsIsFollowedByOneThatDoesNot(t *testing.T) {
	s := etcdtest.Start(t)
	hangs, other := wantest.New(t, s.Endpoint(), 0), wantest.New(t, s.Endpoint(), 0)
	client := etcdtest.NewClient(t, hangs.Address())
	c := campaignWith(t, client, "it", nil)
	<-c.elected
	hangs.Cut()
	client.SetEndpoints(other.Address())
	<-c.ended
	<-c.elected
	select {
	case <-c.ended:
		t.Error("the role was lost again")
	case <-time.After(5 * election.MinTTL):
	}
}
