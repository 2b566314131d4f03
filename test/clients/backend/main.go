// Command backend is the service that the clients of package clients call: gRPC's
// health service, whose answers name the backend in a header.
//
//	backend ID ADDRESS
//
// It prints one line once it serves. SIGTERM makes it finish what it has, tell its
// clients to go elsewhere, and end. With its input it ends at once.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/aether-federation/aether/test/clients"
)

// drainTimeout bounds how long a backend that ends waits for its clients.
const drainTimeout = 10 * time.Second

// minPing is how often clients may ask whether the connection lives. Without it, a
// server cuts off those that ask more than every five minutes.
const minPing = 500 * time.Millisecond

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: backend ID ADDRESS")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(id, address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(named(id)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}))
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends, it has ended
		server.Stop()
		stop()
	}()
	var g errgroup.Group
	g.Go(func() error { return server.Serve(l) })
	g.Go(func() error {
		<-ctx.Done()
		impatient := time.AfterFunc(drainTimeout, server.Stop)
		defer impatient.Stop()
		server.GracefulStop()
		return nil
	})
	fmt.Println("ready")
	return g.Wait()
}

// named puts the backend's name into the header of each answer.
func named(id string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := grpc.SetHeader(ctx, metadata.Pairs(clients.BackendHeader, id)); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}
