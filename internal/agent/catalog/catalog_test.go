package catalog

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/aether-federation/aether/internal/atomicfile"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

var origin = registry.Origin{Region: "a", Cluster: "c1"}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// region is a registrar on an etcd, that a test stops and starts.
type region struct {
	t       *testing.T
	store   *etcd.Store
	address string
	stop    func()
}

func newRegion(t *testing.T) *region {
	t.Helper()
	store, err := etcd.New(etcd.Config{Client: etcdtest.Start(t).Client(t), Origin: origin})
	fatal(t, err)
	r := &region{t: t, store: store, address: etcdtest.FreeAddress(t)}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *region) start() {
	r.t.Helper()
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: r.store.Client()})
	fatal(r.t, err)
	grpc, err := net.Listen("tcp", r.address)
	fatal(r.t, err)
	http, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(r.t, err)
	s, err := registrar.New(registrar.Config{Origin: origin, Store: r.store, Feed: etcdfeed.New(feed), GRPC: grpc, HTTP: http})
	fatal(r.t, err)
	r.stop = r.running(s.Run)
	<-s.View().Ready()
}

// running runs f until it is stopped.
func (r *region) running(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			r.t.Errorf("ended with %v", err)
		}
	})
}

func (r *region) register(endpoints ...registry.Endpoint) {
	r.t.Helper()
	_, err := r.store.Register(r.t.Context(), endpoints)
	fatal(r.t, err)
}

func (r *region) unregister(e registry.Endpoint) {
	r.t.Helper()
	_, _, err := r.store.Unregister(r.t.Context(), []registry.Claim{{Key: e.Key}})
	fatal(r.t, err)
}

// agent runs a catalog that follows r.
func (r *region) agent(change func(*Config)) (*Catalog, func()) {
	r.t.Helper()
	client, err := remote.New(r.address, remote.WithFailover())
	fatal(r.t, err)
	cfg := Config{Registrar: client, SaveEvery: 10 * time.Millisecond, StaleAfter: 100 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	fatal(r.t, err)
	run := r.running(c.Run)
	stop := sync.OnceFunc(func() { run(); client.Close() })
	r.t.Cleanup(stop)
	return c, stop
}

func at(service string, n byte) registry.Endpoint {
	return registry.Endpoint{Key: registry.Key{
		Origin: origin, Service: service, Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, 0, n}),
	}, Weight: 1, Ports: []registry.Port{{Name: "http", Number: 80}}, Metadata: map[string]string{"k": "v"}}
}

func stateOf(c *Catalog, region string) string {
	for _, r := range c.Regions().GetRegions() {
		if r.GetRegion() == region {
			return r.GetState()
		}
	}
	return ""
}

// TestNodeBootsWhileNobodyAnswers: what was known is served, as stale and with its
// age, and once a registrar is back a watcher of the agent sees the difference
// alone.
func TestNodeBootsWhileNobodyAnswers(t *testing.T) {
	r := newRegion(t)
	file := filepath.Join(t.TempDir(), "state", "view")
	onDisk := func(c *Config) { c.File = file }
	stays, goes := at("api", 1), at("api", 2)
	r.register(stays, goes, at("web", 3))
	first, stop := r.agent(onDisk)
	eventually(t, "all is known", func() bool { return first.Snapshot(registry.Query{}).Len() == 3 && stateOf(first, "a") == "own" })
	if age := first.Ages()["a"]; age < 0 || age > patience {
		t.Errorf("age %v", age)
	}
	stop()
	r.stop()
	r.unregister(goes)
	r.register(at("new", 4))

	second, _ := r.agent(onDisk)
	<-second.Ready()
	got := second.Service("api")
	if len(got) != 2 || !got[0].Equal(stays) {
		t.Fatalf("served from disk: %v", got)
	}
	eventually(t, "it is stale", func() bool { return stateOf(second, "a") == "stale" && second.Ages()["a"] >= 100*time.Millisecond })
	if second.Region() != "a" {
		t.Errorf("region %q", second.Region())
	}

	events := make(chan registry.Event, 100)
	stopWatch := r.running(func(ctx context.Context) error {
		return second.Watch(ctx, registry.Query{}, func(e registry.Event) error { events <- e; return nil })
	})
	defer stopWatch()
	for e := range events {
		if e.Kind == registry.Synced {
			break
		}
	}
	r.start()
	told := map[string]int{}
	for told["delete"]+told["put"] < 2 {
		e := <-events
		told[e.Kind.String()]++
		if e.Endpoint.Key != goes.Key && e.Endpoint.Key != at("new", 4).Key {
			t.Errorf("told of %v", e)
		}
	}
	eventually(t, "it is fresh", func() bool { return stateOf(second, "a") == "own" })
}

func TestAgentThatKnowsSomeServices(t *testing.T) {
	r := newRegion(t)
	r.register(at("api", 1), at("web", 2))
	file := filepath.Join(t.TempDir(), "view")
	all, stop := r.agent(func(c *Config) { c.File = file })
	eventually(t, "all is known", func() bool { return all.Snapshot(registry.Query{}).Len() == 2 })
	stop()
	some, _ := r.agent(func(c *Config) { c.File, c.Services = file, []string{"api", "more"} })
	<-some.Ready()
	r.register(at("web", 3), at("more", 4))
	eventually(t, "the others are known", func() bool { return len(some.Service("more")) == 1 })
	if n := some.Snapshot(registry.Query{}).Len(); n != 2 {
		t.Errorf("%d endpoints are known, want 2", n)
	}
}

// someFile returns a file of one endpoint.
func someFile(t testing.TB) []byte {
	o, err := New(Config{Registrar: &remote.Registry{}})
	fatal(t, err)
	e := at("api", 1)
	fatal(t, o.tell(remote.Step{Changes: []remote.Change{{Kind: registry.Put, Endpoint: &e}}, Revision: "x-1-7"}))
	file, err := encode(head{Region: "a", Revision: "x-1-7", Proven: time.Now()}, o.Snapshot(registry.Query{}))
	fatal(t, err)
	return file
}

// TestFileThatIsRefused: whatever the file, the agent starts, says what is wrong
// and keeps it.
func TestFileThatIsRefused(t *testing.T) {
	good := someFile(t)
	if k, err := decode(good, "a"); err != nil || len(k.endpoints) != 1 || !k.endpoints[0].Equal(at("api", 1)) {
		t.Fatalf("decode: %v, %v", k, err)
	}
	changed := func(n int, b byte) []byte {
		out := bytes.Clone(good)
		out[n] = b
		return out
	}
	tests := map[string]struct {
		file   []byte
		region string
		reason string
	}{
		"empty":          {nil, "", "cut short"},
		"cut short":      {good[:len(good)-3], "", "cut short"},
		"another kind":   {changed(0, 'X'), "", "no view"},
		"a later one":    {changed(len(magic)+3, 2), "", "version 2"},
		"damaged":        {changed(len(good)-1, good[len(good)-1]^1), "", "damaged"},
		"another region": {good, "b", "is of region"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "view")
			fatal(t, os.WriteFile(file, tt.file, 0o600))
			var log bytes.Buffer
			c, err := New(Config{Registrar: &remote.Registry{}, File: file, Region: tt.region, Log: slog.New(slog.NewTextHandler(&log, nil))})
			fatal(t, err)
			c.load()
			if !strings.Contains(log.String(), tt.reason) {
				t.Errorf("said: %s", log.String())
			}
			kept, err := os.ReadFile(file + ".refused")
			if err != nil || !bytes.Equal(kept, tt.file) {
				t.Errorf("kept %d bytes, %v", len(kept), err)
			}
			if c.size() != 0 || c.Age() != -1 {
				t.Errorf("%d endpoints, age %v", c.size(), c.Age())
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(someFile(f))
	f.Fuzz(func(_ *testing.T, file []byte) {
		_, _ = decode(file, "") // it must not panic
	})
}

func TestSaveThatIsBrokenOffLeavesTheFormer(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "view")
	fatal(t, atomicfile.Write(path, []byte("one")))
	fatal(t, os.WriteFile(path+".123.tmp", []byte("half"), 0o600))
	fatal(t, atomicfile.Sweep(path))
	fatal(t, atomicfile.Write(path, []byte("two")))
	if got, err := os.ReadFile(path); err != nil || string(got) != "two" {
		t.Errorf("read %q, %v", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestOutageIsLoggedOnce, however often a registrar is tried in it, and its end too.
func TestOutageIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	c, err := New(Config{Registrar: &remote.Registry{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	fatal(t, err)
	c.prove(time.Now())
	for range 2 {
		for range 100 {
			c.interrupted(errors.New("refused"))
		}
		c.prove(time.Now())
	}
	if lost, back := strings.Count(log.String(), "no registrar is followed"), strings.Count(log.String(), "in step"); lost != 2 || back != 3 {
		t.Errorf("%d times lost, %d times back: %s", lost, back, log.String())
	}
}
