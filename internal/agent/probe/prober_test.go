package probe

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/aether-federation/aether/registry"
)

// patience bounds a wait for a condition.
const patience = 30 * time.Second

func target(l net.Listener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }

func ask(t *testing.T, c Check) error {
	t.Helper()
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return newAsker().ask(t.Context(), c)
}

func wantErr(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%v does not say %q", err, text)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestTCP(t *testing.T) {
	l := listen(t)
	if err := ask(t, Check{Kind: TCP, Target: target(l)}); err != nil {
		t.Error(err)
	}
	l.Close()
	wantErr(t, ask(t, Check{Kind: TCP, Target: target(l)}), "refused")
}

func TestHTTP(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/hang":
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/", http.StatusFound)
		case r.Host == "other.example" && r.URL.RawQuery == "deep=1":
			w.WriteHeader(http.StatusTeapot)
		case r.URL.Path != "/":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	defer close(hang)
	c := Check{Kind: HTTP, Target: target(s.Listener)}
	if err := ask(t, c); err != nil {
		t.Error(err)
	}
	c.Path = "/ill"
	wantErr(t, ask(t, c), "status 503")
	c.Path = "/moved"
	if err := ask(t, c); err != nil {
		t.Error(err)
	}
	c.StatusFrom, c.StatusTo = 200, 299
	wantErr(t, ask(t, c), "status 302")
	c.Path, c.Host, c.StatusFrom, c.StatusTo = "/x?deep=1", "other.example", 418, 418
	if err := ask(t, c); err != nil {
		t.Error(err)
	}
	wantErr(t, ask(t, Check{Kind: HTTP, Target: target(s.Listener), Path: "/hang", Timeout: 50 * time.Millisecond}), "no answer within 50ms")
}

func TestHTTPS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	c := Check{Kind: HTTP, Target: target(s.Listener), TLS: true}
	wantErr(t, ask(t, c), "certificate")
	c.SkipVerify = true
	if err := ask(t, c); err != nil {
		t.Error(err)
	}
}

func TestGRPC(t *testing.T) {
	l := listen(t)
	h := health.NewServer()
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, h)
	go s.Serve(l)
	defer s.Stop()
	c := Check{Kind: GRPC, Target: target(l)}
	if err := ask(t, c); err != nil {
		t.Error(err)
	}
	h.SetServingStatus("api", healthv1.HealthCheckResponse_NOT_SERVING)
	c.Service = "api"
	wantErr(t, ask(t, c), "NOT_SERVING")
	c.Service = "none"
	wantErr(t, ask(t, c), "unknown service")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// run runs a prober until the test ends.
func run(t *testing.T, p *Prober) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestProberFollowsWhatIsSet(t *testing.T) {
	var asked, ill atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if ill.Load() > 0 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer s.Close()
	changes := make(chan struct{}, 100)
	p := New(Config{Changed: func() { changes <- struct{}{} }})
	run(t, p)
	c := Check{Kind: HTTP, Target: target(s.Listener), Interval: 100 * time.Millisecond}.WithDefaults()
	p.Set(map[registry.Key]Check{keyOf(1): c, keyOf(2): c}, nil)
	is := func(n int, healthy bool) func() bool {
		return func() bool {
			v, _ := p.Verdicts()
			return v[keyOf(n)].Known && v[keyOf(n)].Healthy == healthy
		}
	}
	eventually(t, "both are well", func() bool { return is(1, true)() && is(2, true)() })
	<-changes
	ill.Store(1)
	eventually(t, "both are ill", func() bool { return is(1, false)() && is(2, false)() })
	p.Set(map[registry.Key]Check{keyOf(2): c}, nil)
	ill.Store(0)
	eventually(t, "the other one is well", is(2, true))
	if v, _ := p.Verdicts(); len(v) != 1 {
		t.Errorf("verdicts are %v", v)
	}
	p.Set(nil, nil)
	eventually(t, "nobody is asked", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.running) == 0
	})
}
