package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
)

const fleet = 20_000

func benchStore(b *testing.B) (*etcd.Store, []registry.Endpoint) {
	b.Helper()
	client := etcdtest.Start(b).Client(b)
	s, err := etcd.New(etcd.Config{Client: client, Origin: own, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	endpoints := make([]registry.Endpoint, fleet)
	for i := range endpoints {
		endpoints[i] = endpoint(fmt.Sprintf("service-%d.shop", i/100), fmt.Sprintf("10.0.%d.%d", i/256, i%256))
		endpoints[i].Node = fmt.Sprintf("node-%d", i%500)
	}
	return s, endpoints
}

func perEndpoint(b *testing.B) {
	b.ReportMetric(float64(fleet*b.N)/b.Elapsed().Seconds(), "endpoints/s")
}

// BenchmarkRegister writes a fleet, and then again, changed.
func BenchmarkRegister(b *testing.B) {
	s, endpoints := benchStore(b)
	for b.Loop() {
		for i := range endpoints {
			endpoints[i].Weight += 2
		}
		if _, err := s.Register(b.Context(), endpoints); err != nil {
			b.Fatal(err)
		}
	}
	perEndpoint(b)
}

// BenchmarkRegisterUnchanged reads a fleet that is there.
func BenchmarkRegisterUnchanged(b *testing.B) {
	s, endpoints := benchStore(b)
	if _, err := s.Register(b.Context(), endpoints); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Register(b.Context(), endpoints); err != nil {
			b.Fatal(err)
		}
	}
	perEndpoint(b)
}

// BenchmarkFeedSnapshot is what a registrar does when it starts.
func BenchmarkFeedSnapshot(b *testing.B) {
	s, endpoints := benchStore(b)
	if _, err := s.Register(b.Context(), endpoints); err != nil {
		b.Fatal(err)
	}
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: s.Client(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	synced := errors.New("synced")
	for b.Loop() {
		n := 0
		err := feed.Run(context.Background(), func(u etcd.Update) error {
			n += len(u.Endpoints)
			if u.Synced {
				return synced
			}
			return nil
		})
		if err != synced || n != fleet {
			b.Fatal(n, err)
		}
	}
	perEndpoint(b)
}
