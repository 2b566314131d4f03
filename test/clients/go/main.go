// Command go calls a service that it finds by xDS and counts how that goes. The
// contract is that of package clients.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds" // the resolver of xds:///

	"github.com/aether-federation/aether/test/clients"
)

const (
	period = 100 * time.Millisecond
	pace   = 10 * time.Millisecond
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("usage: go TARGET CALLS-PER-SECOND DEADLINE-MS SILENCE-MS")
	}
	rate, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return fmt.Errorf("read rate: %w", err)
	}
	deadline, err := time.ParseDuration(args[2] + "ms")
	if err != nil {
		return fmt.Errorf("read deadline: %w", err)
	}
	silence, err := time.ParseDuration(args[3] + "ms")
	if err != nil {
		return fmt.Errorf("read silence: %w", err)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if silence > 0 {
		// Pings are 10 s apart at the least; TCP's own timeout, which gRPC sets to the
		// same, tells sooner while there are calls.
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: silence}))
	}
	conn, err := grpc.NewClient(args[0], options...)
	if err != nil {
		return fmt.Errorf("make channel: %w", err)
	}
	defer conn.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends, it has ended
		stop()
	}()
	c := &caller{health: healthv1.NewHealthClient(conn), deadline: deadline}
	return c.run(ctx, rate)
}

// caller makes calls and counts them.
type caller struct {
	health   healthv1.HealthClient
	deadline time.Duration
	calls    sync.WaitGroup

	mu  sync.Mutex
	now clients.Period
}

// run calls and reports until ctx ends, and then until each call has ended.
func (c *caller) run(ctx context.Context, rate float64) error {
	out := json.NewEncoder(os.Stdout)
	pacing, reporting := time.NewTicker(pace), time.NewTicker(period)
	defer pacing.Stop()
	defer reporting.Stop()
	begin := time.Now()
	for started := 0; ; {
		select {
		case <-pacing.C:
			// A tick that comes late delays calls and leaves none out.
			for ; float64(started) < time.Since(begin).Seconds()*rate; started++ {
				c.calls.Go(c.call)
			}
		case <-reporting.C:
			if err := out.Encode(c.take()); err != nil {
				return fmt.Errorf("report: %w", err)
			}
		case <-ctx.Done():
			c.calls.Wait()
			return out.Encode(c.take())
		}
	}
}

func (c *caller) call() {
	started := time.Now()
	// A call outlives the signal to stop: it is not a failure of the service.
	ctx, cancel := context.WithTimeout(context.Background(), c.deadline)
	defer cancel()
	var header metadata.MD
	_, err := c.health.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&header))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		s := status.Convert(err)
		c.now.Failed = append(c.now.Failed, clients.Failure{Started: started.UnixMilli(), Code: s.Code(), Text: s.Message()})
		return
	}
	if c.now.OK == nil {
		c.now.OK = map[string]int{}
	}
	c.now.OK[strings.Join(header.Get(clients.BackendHeader), ",")]++
}

// take returns what happened since it was last called.
func (c *caller) take() clients.Period {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.now
	p.Time = time.Now().UnixMilli()
	c.now = clients.Period{}
	return p
}
