package access_test

import (
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/registry"
)

func TestCallsAreLimitedForEachClient(t *testing.T) {
	l := access.NewLimiter(access.Limits{Rate: 10, Burst: 20})
	now := time.Now()
	allowed := 0
	for range 50 {
		if l.Call("a", 1, now) == nil {
			allowed++
		}
	}
	if allowed != 20 {
		t.Errorf("%d calls at once, want the burst of 20", allowed)
	}
	if err := l.Call("a", 1, now); registry.KindOf(err) != registry.Limited {
		t.Errorf("one more: %v", err)
	}
	if err := l.Call("b", 1000, now); err != nil {
		t.Errorf("another client, with a call that costs more than the burst: %v", err)
	}
	if err := l.Call("a", 10, now.Add(time.Second)); err != nil {
		t.Errorf("a second later: %v", err)
	}
	if err := access.NewLimiter(access.Limits{}).Call("a", 1<<20, now); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

func TestStreamsAreLimitedForEachClient(t *testing.T) {
	l := access.NewLimiter(access.Limits{Streams: 1})
	now := time.Now()
	done, err := l.Open("a", now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Open("a", now.Add(time.Hour)); registry.KindOf(err) != registry.Limited {
		t.Errorf("a second stream: %v", err)
	}
	if _, err := l.Open("b", now); err != nil {
		t.Errorf("another client: %v", err)
	}
	done()
	if _, err := l.Open("a", now); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}
