package registrar_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
)

func durationOf(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// raw returns a plain gRPC client.
func (n *node) raw(options ...grpc.DialOption) *grpc.ClientConn {
	n.t.Helper()
	conn, err := grpc.NewClient(n.grpc, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	fatal(n.t, err)
	n.t.Cleanup(func() { conn.Close() })
	return conn
}

func plainEndpoint(service string, n int) registry.Endpoint {
	return registry.Endpoint{Key: registry.Key{Service: service, Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})}}
}

func (n *node) register(endpoints ...registry.Endpoint) {
	n.t.Helper()
	_, err := n.client.Register(n.t.Context(), endpoints)
	fatal(n.t, err)
}

func TestWatchChangesItsServices(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, nil).ready()
	n.register(plainEndpoint("a", 1), plainEndpoint("b", 2), plainEndpoint("c", 3))
	eventually(t, "all are served", func() bool { return len(n.list()) == 3 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := registryv1.NewRegistryServiceClient(n.raw()).Watch(ctx)
	fatal(t, err)
	for _, services := range [][]string{{"a", "b"}, {"c"}} {
		fatal(t, stream.Send(&registryv1.WatchRequest{Services: services}))
		m, err := stream.Recv()
		fatal(t, err)
		if !m.GetReset_() || !m.GetSynced() || len(m.GetChanges()) != len(services) || m.GetRevision() == "" {
			t.Errorf("snapshot of %v: %v", services, m)
		}
	}
	fatal(t, stream.CloseSend())
	n.register(plainEndpoint("a", 4), plainEndpoint("c", 5))
	m, err := stream.Recv()
	fatal(t, err)
	if len(m.GetChanges()) != 1 || m.GetChanges()[0].GetPut().GetService() != "c" || m.GetReset_() || m.GetSynced() {
		t.Errorf("change: %v", m)
	}
	fatalKind(t, stream, func() { cancel() }, codes.Canceled)
}

// fatalKind does what ends a stream and drains it until it has ended.
func fatalKind(t *testing.T, stream grpc.BidiStreamingClient[registryv1.WatchRequest, registryv1.WatchResponse], end func(), want codes.Code) {
	t.Helper()
	end()
	for {
		if _, err := stream.Recv(); err != nil {
			if status.Code(err) != want {
				t.Errorf("the stream ended with %v, want %v", err, want)
			}
			return
		}
	}
}

func TestSlowWatcherIsCutOff(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, func(c *registrar.Config) { c.WatchBuffer = 50 }).ready()
	conn := n.raw(grpc.WithInitialWindowSize(65535), grpc.WithStaticStreamWindowSize(65535), grpc.WithStaticConnWindowSize(65535))
	stream, err := registryv1.NewRegistryServiceClient(conn).Watch(t.Context())
	fatal(t, err)
	fatal(t, stream.Send(&registryv1.WatchRequest{}))
	_, err = stream.Recv()
	fatal(t, err)
	write := 0
	eventually(t, "the watcher is cut off", func() bool {
		batch := make([]registry.Endpoint, 20)
		for i := range batch {
			batch[i] = plainEndpoint("big", i)
			batch[i].Metadata = map[string]string{"pad": fmt.Sprintf("%d%s", write, strings.Repeat("x", 1000))}
		}
		n.register(batch...)
		write++
		_, got := n.call("GET", "/metrics", "")
		return strings.Contains(got, "aether_registrar_watchers_cut_off_total 1")
	})
	fatalKind(t, stream, func() {}, codes.ResourceExhausted)
	if len(n.list()) != 20 {
		t.Error("the others are not served")
	}
}

func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, nil).ready()
	n.register(plainEndpoint("a", 1), plainEndpoint("b", 2), plainEndpoint("c", 3))
	eventually(t, "all are served", func() bool { return len(n.list()) == 3 })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.http+"/v1/watch?service=a&service=b", nil)
	fatal(t, err)
	answer, err := http.DefaultClient.Do(req)
	fatal(t, err)
	defer answer.Body.Close()
	if got := answer.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %q", got)
	}
	lines := bufio.NewScanner(answer.Body)
	first := nextData(t, lines)
	if first["reset"] != true || first["synced"] != true || len(first["changes"].([]any)) != 2 {
		t.Errorf("snapshot: %v", first)
	}
	_, _, err = n.client.Unregister(t.Context(), []registry.Claim{{Key: plainEndpoint("c", 3).Key}, {Key: plainEndpoint("b", 2).Key}})
	fatal(t, err)
	change := nextData(t, lines)["changes"].([]any)[0].(map[string]any)["delete"].(map[string]any)
	if change["ip"] != "10.1.0.2" || change["service"] != "b" || change["region"] != "a" {
		t.Errorf("delete: %v", change)
	}
	n.stop()
	last := nextData(t, lines)["error"].(map[string]any)
	if last["kind"] != "unavailable" {
		t.Errorf("end: %v", last)
	}
}

// nextData reads events up to the next that has data.
func nextData(t *testing.T, lines *bufio.Scanner) map[string]any {
	t.Helper()
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var m map[string]any
			fatal(t, json.Unmarshal([]byte(data), &m))
			return m
		}
	}
	t.Fatalf("the events ended: %v", lines.Err())
	return nil
}

func TestStopEndsStreamsAndHealth(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, nil).ready()
	health := healthv1.NewHealthClient(n.raw())
	eventually(t, "it is healthy", func() bool {
		answer, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "aether.registry.v1.RegistryService"})
		return err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
	})
	synced := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- n.client.Watch(t.Context(), registry.Query{}, func(e registry.Event) error {
			if e.Kind == registry.Synced {
				close(synced)
			}
			return nil
		})
	}()
	<-synced
	watching, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	fatal(t, err)
	_, err = watching.Recv()
	fatal(t, err)
	n.stop()
	if err := <-ended; registry.KindOf(err) != registry.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
	err = <-n.stopped
	n.stopped <- err
	if err != nil {
		t.Errorf("the registrar ended with %v", err)
	}
}

func TestWatchEndsWithItsContextAndItsError(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, nil).ready()
	mine := errors.New("mine")
	if err := n.client.Watch(t.Context(), registry.Query{}, func(registry.Event) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("the watch ended with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := n.client.Watch(ctx, registry.Query{}, func(registry.Event) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
}
