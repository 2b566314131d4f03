package registrar_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds a wait for a condition.
const patience = 30 * time.Second

// node is a running registrar.
type node struct {
	t       *testing.T
	server  *registrar.Server
	client  *remote.Registry
	http    string
	grpc    string
	stop    context.CancelFunc
	stopped chan error
}

// anEtcd is one in this process or in another.
type anEtcd interface {
	Client(tb testing.TB) *clientv3.Client
}

// start runs a registrar on a real etcd until the test ends.
func start(t *testing.T, server anEtcd, origin registry.Origin, change func(*registrar.Config)) *node {
	t.Helper()
	client := server.Client(t)
	store, err := etcd.New(etcd.Config{Client: client, Origin: origin})
	fatal(t, err)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: client})
	fatal(t, err)
	metrics := prometheus.NewRegistry()
	cfg := registrar.Config{
		Origin: origin, Store: store, Feed: etcdfeed.New(feed),
		GRPC: listen(t), HTTP: listen(t),
		Metrics: registrar.NewMetrics(metrics), Gatherer: metrics,
	}
	if change != nil {
		change(&cfg)
	}
	n := &node{t: t, http: "http://" + cfg.HTTP.Addr().String(), grpc: cfg.GRPC.Addr().String(), stopped: make(chan error, 1)}
	n.server, err = registrar.New(cfg)
	fatal(t, err)
	n.client, err = remote.New(n.grpc)
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	go func() { n.stopped <- n.server.Run(ctx) }()
	t.Cleanup(func() {
		n.client.Close()
		cancel()
		if err := <-n.stopped; err != nil {
			t.Errorf("registrar ended with %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return n
}

func (n *node) ready() *node {
	n.t.Helper()
	select {
	case <-n.server.View().Ready():
	case <-time.After(patience):
		n.t.Fatal("the view was not loaded")
	}
	return n
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	return l
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok.
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

// call returns the status and the body of an HTTP request.
func (n *node) call(method, path, body string) (int, string) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), method, n.http+path, strings.NewReader(body))
	fatal(n.t, err)
	answer, err := http.DefaultClient.Do(req)
	fatal(n.t, err)
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	fatal(n.t, err)
	return answer.StatusCode, string(bytes.TrimSpace(got))
}

func (n *node) want(method, path, body string, status int, contains ...string) string {
	n.t.Helper()
	code, got := n.call(method, path, body)
	if code != status {
		n.t.Errorf("%s %s: status %d, want %d: %s", method, path, code, status, got)
	}
	for _, part := range contains {
		if !strings.Contains(got, part) {
			n.t.Errorf("%s %s: %s\ndoes not contain %s", method, path, got, part)
		}
	}
	return got
}

var origin = registry.Origin{Region: "a", Cluster: "c1"}

const apiEndpoint = "/v1/services/api.shop/protocols/http/endpoints/"

func TestHTTPShapes(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, func(c *registrar.Config) { c.Peers = somePeers{} }).ready()
	body := `{"ports":[{"name":"http","number":8080}],"weight":1,"health":"HEALTH_HEALTHY","zone":"a1","node":"n1"}`
	n.want("PUT", apiEndpoint+"10.0.0.1", body, 200, `{"revision":"`)
	eventually(t, "the endpoint is listed", func() bool {
		_, got := n.call("GET", "/v1/services/api.shop/endpoints", "")
		return strings.Contains(got, "10.0.0.1")
	})
	got := n.want("GET", "/v1/services/api.shop/endpoints", "", 200, `{"endpoints":[{"ip":"10.0.0.1","ports":[{"name":"http","number":8080}],"weight":1,`+
		`"health":"HEALTH_HEALTHY","region":"a","zone":"a1","cluster":"c1","node":"n1","service":"api.shop","protocol":"http"}],"revision":"`)
	if !json.Valid([]byte(got)) {
		t.Errorf("no JSON: %s", got)
	}
	n.want("GET", "/v1/services", "", 200, `{"services":[{"name":"api.shop","protocols":["http"],"endpoints":1,"healthy":1,"regions":["a"]}],"revision":"`)
	n.want("GET", "/v1/services/none/endpoints", "", 200, `{"endpoints":[],"revision":"`)
	n.want("GET", "/v1/regions", "", 200, `{"regions":[{"region":"a","state":"own","endpoints":1,"age":"0s","revision":"","reason":"","kept":0}]}`)
	n.want("GET", "/v1/peers", "", 200, `"region":"b"`, `"lag":"0.080s","pending":0,"leases":200,"keys":20000`)
	n.want("GET", "/metrics", "", 200, `aether_registrar_endpoints{origin="a"} 1`, `aether_registrar_region_state{origin="a",state="own"} 1`,
		`aether_registrar_writes_total{operation="register",outcome="ok"} 1`)
	n.want("GET", "/livez", "", 200, "ok")
	n.want("GET", "/readyz", "", 200, "ok")
	n.want("GET", "/", "", 200, "/v1/watch")
	n.want("DELETE", apiEndpoint+"10.0.0.1?node=n2", "", 409, `{"error":{"kind":"conflict"`)
	n.want("DELETE", apiEndpoint+"10.0.0.1?node=n1", "", 200, `"removed":1`)
	n.want("DELETE", apiEndpoint+"10.0.0.1", "", 200, `"removed":0`)
}

func TestHTTPRefusals(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, nil).ready()
	n.want("PUT", apiEndpoint+"10.0.0.1", `{"node":"n1"}`, 200)
	n.want("PUT", apiEndpoint+"fd00::1@i-1", ``, 200)
	n.want("PUT", apiEndpoint+"10.0.0.1", `{"node":"n2"}`, 409, `"kind":"conflict"`)
	n.want("PUT", apiEndpoint+"::ffff:10.0.0.4", `{"ip":"10.0.0.4"}`, 200)
	n.want("PUT", apiEndpoint+"10.0.0.3@", ``, 400, `"field":"instance"`)
	n.want("PUT", apiEndpoint+"255.255.255.255", ``, 400, `"field":"ip"`)
	n.want("PUT", apiEndpoint+"10.0.0.1?node=n1", ``, 400, `"field":"node"`)
	n.want("PUT", apiEndpoint+"10.0.0.5?ttl=5s", ``, 200)
	n.want("PUT", apiEndpoint+"10.0.0.5?ttl=4s", ``, 400, `"field":"ttl"`)
	n.want("PUT", apiEndpoint+"10.0.0.5?ttl=soon", ``, 400, `"field":"ttl"`)
	n.want("PUT", apiEndpoint+"10.0.0.5?ttl=30s", `{"node":"n1"}`, 400, `"field":"node"`)
	n.want("DELETE", apiEndpoint+"10.0.0.1?nod=n1", ``, 400, `"field":"nod"`, "use node")
	n.want("GET", "/v1/services?region=a", ``, 400, `"field":"region"`)
	n.want("GET", "/v1/watch?services=a", ``, 400, `"field":"services"`)
	n.want("PUT", apiEndpoint+"10.0.0.300", ``, 400, `"field":"ip"`)
	n.want("PUT", apiEndpoint+"10.0.0.1", `{"ip":"10.0.0.2"}`, 400, `"field":"ip"`)
	n.want("PUT", apiEndpoint+"10.0.0.1", `{"region":"b"}`, 400, `"field":"region"`)
	n.want("PUT", apiEndpoint+"10.0.0.1", `{"wieght":2}`, 400, `"field":"body"`, "wieght")
	n.want("PUT", apiEndpoint+"10.0.0.1", `{"ports":[{"name":"http","number":99999}]}`, 400, `"field":"ports[0].number"`)
	n.want("PUT", apiEndpoint+"10.0.0.1", `{`, 400, `"field":"body"`)
	n.want("PUT", "/v1/services/API/protocols/http/endpoints/10.0.0.1", ``, 400, `"field":"service"`)
	n.want("PUT", "/v1/services/api/protocols/smtp/endpoints/10.0.0.1", ``, 400, `"field":"protocol"`)
	n.want("PUT", apiEndpoint+"10.0.0.1", `{"zone":"`+strings.Repeat("z", 1<<17)+`"}`, 413, `"kind":"invalid"`)
	n.want("GET", "/v1/services/API/endpoints", "", 400, `"field":"service"`)
	n.want("GET", "/v1/watch?service=API", "", 400, `"field":"service"`)
	n.want("GET", "/v2/services", "", 404, `{"error":{"kind":"not found"`)
	n.want("POST", "/v1/services", "", 405, `{"error":`)
}

func TestWritesFailAndReadsGoOnWhileEtcdIsAway(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	n := start(t, server, origin, func(c *registrar.Config) { c.WriteTimeout = time.Second; c.BlindAfter = time.Second }).ready()
	n.want("PUT", apiEndpoint+"10.0.0.1", ``, 200)
	eventually(t, "the endpoint is listed", func() bool { return len(n.list()) == 1 })
	server.Stop()
	n.want("PUT", apiEndpoint+"10.0.0.2", ``, 503, `"kind":"unavailable"`)
	_, err := n.client.Register(t.Context(), []registry.Endpoint{{}})
	if registry.KindOf(err) != registry.Invalid {
		t.Errorf("a write without an address: %v", err)
	}
	eventually(t, "the own region's age grows", func() bool {
		regions, err := n.client.Regions(t.Context())
		return err == nil && regions[0].GetAge().AsDuration() > time.Second
	})
	eventually(t, "writes are refused at once", func() bool {
		_, answer := n.call("PUT", apiEndpoint+"10.0.0.2", ``)
		return strings.Contains(answer, "so nothing was written")
	})
	n.want("GET", "/readyz", "", 200)
	if len(n.list()) != 1 {
		t.Error("the endpoint is gone")
	}
	server.Restart()
	eventually(t, "writes work again", func() bool {
		code, _ := n.call("PUT", apiEndpoint+"10.0.0.2", "")
		return code == 200
	})
	eventually(t, "reads follow", func() bool { return len(n.list()) == 2 })
}

func (n *node) list() []registry.Endpoint {
	n.t.Helper()
	snapshot, err := n.client.List(n.t.Context(), registry.Query{})
	fatal(n.t, err)
	return snapshot.Endpoints
}

func TestNotReadyUntilLoaded(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, func(c *registrar.Config) { c.Feed = silentFeed{} })
	n.want("GET", "/readyz", "", 503)
	n.want("GET", "/v1/services", "", 503, `"kind":"unavailable"`)
	n.want("GET", "/v1/regions", "", 503, `"kind":"unavailable"`)
	n.want("GET", "/livez", "", 200)
	_, err := n.client.List(t.Context(), registry.Query{})
	if registry.KindOf(err) != registry.Unavailable {
		t.Errorf("list: %v", err)
	}
}

func TestConfigIsValidated(t *testing.T) {
	_, err := registrar.New(registrar.Config{Origin: registry.Origin{Region: "a/b", Cluster: "c"}})
	if err == nil || !strings.Contains(err.Error(), "region") || !strings.Contains(err.Error(), "needs a store") {
		t.Errorf("New: %v", err)
	}
}

// silentFeed has never anything to tell.
type silentFeed struct{}

func (silentFeed) Run(ctx context.Context, _ func(registrar.Update) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (silentFeed) TimeToLive(context.Context, int64) (time.Duration, time.Duration, error) {
	return 0, 0, errors.New("silent")
}

type somePeers struct{}

func (somePeers) Peers(context.Context) ([]*registryv1.Peer, error) {
	return []*registryv1.Peer{{Region: "b", State: "live", Leader: "r-1", Lag: durationOf(80 * time.Millisecond), Leases: 200, Keys: 20000}}, nil
}

func TestRegisteredForATime(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, nil).ready()
	_, err := n.client.RegisterFor(t.Context(), 5*time.Second, []registry.Endpoint{plainEndpoint("api", 1)})
	fatal(t, err)
	n.want("PUT", apiEndpoint+"10.0.0.2?ttl=1m", ``, 200)
	eventually(t, "both are listed", func() bool { return len(n.list()) == 2 })
	eventually(t, "the first lapses", func() bool { return len(n.list()) == 1 })
	_, err = n.client.RegisterFor(t.Context(), time.Second, []registry.Endpoint{plainEndpoint("api", 1)})
	if registry.KindOf(err) != registry.Invalid {
		t.Errorf("a ttl that is too short: %v", err)
	}
}
