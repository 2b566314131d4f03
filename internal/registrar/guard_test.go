package registrar_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// signer issues certificates.
type signer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	s := &signer{t: t, pool: x509.NewCertPool()}
	pair := s.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	s.cert, s.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	s.pool.AddCert(s.cert)
	return s
}

func (s *signer) issue(template *x509.Certificate) tls.Certificate {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(s.t, err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := s.cert, s.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	fatal(s.t, err)
	leaf, err := x509.ParseCertificate(der)
	fatal(s.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// client returns the TLS of a client with a common name or a SPIFFE path.
func (s *signer) client(cn, path string) *tls.Config {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: cn}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if path != "" {
		template.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: path}}
	}
	return &tls.Config{RootCAs: s.pool, Certificates: []tls.Certificate{s.issue(template)}}
}

// lines collects what is logged.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// audits returns who, operation and outcome of each audit line.
func (l *lines) audits(t *testing.T) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range strings.Lines(l.buf.String()) {
		var m map[string]any
		fatal(t, json.Unmarshal([]byte(line), &m))
		if m["msg"] == "audit" {
			out = append(out, m["who"].(string)+" "+m["operation"].(string)+" "+m["outcome"].(string))
		}
	}
	return out
}

// denials returns the endpoints that each denied write named.
func (l *lines) denials(t *testing.T) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range strings.Lines(l.buf.String()) {
		var m map[string]any
		fatal(t, json.Unmarshal([]byte(line), &m))
		if m["outcome"] == "denied" {
			out = append(out, fmt.Sprint(m["endpoints"]))
		}
	}
	return out
}

// guarded runs a registrar that asks who its clients are.
func guarded(t *testing.T, s *signer, log *lines, changes ...func(*registrar.Config)) *node {
	t.Helper()
	policy, err := access.NewPolicy([]access.Rule{
		{Role: access.Reader, Identities: []string{"cn:reader"}},
		{Role: access.Writer, Identities: []string{"cn:writer"}},
		{Role: access.Node, Identities: []string{"spiffe://example.org/*/node/{node}"}},
	})
	fatal(t, err)
	server := s.issue(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return start(t, etcdtest.Start(t), origin, func(c *registrar.Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: s.pool, ClientAuth: tls.RequireAndVerifyClientCert}
		c.HTTPTLS = c.TLS.Clone()
		c.HTTPTLS.ClientAuth = tls.VerifyClientCertIfGiven
		c.Access, c.Log = policy, slog.New(slog.NewJSONHandler(log, nil))
		for _, change := range changes {
			change(c)
		}
	}).ready()
}

func TestWhoMayDoWhatOverGRPC(t *testing.T) {
	t.Parallel()
	s, log := newSigner(t), &lines{}
	n := guarded(t, s, log)
	as := func(cn, path string) *remote.Registry {
		c, err := remote.New(n.grpc, remote.WithTLS(s.client(cn, path)))
		fatal(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	mine, other := plainEndpoint("api", 1), plainEndpoint("api", 2)
	mine.Node, other.Node = "n1", "n2"
	ctx := t.Context()
	reader, writer, nodeOne := as("reader", ""), as("writer", ""), as("", "/c1/node/n1")
	denied := func(what string, want registry.Kind, err error) {
		t.Helper()
		if registry.KindOf(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := writer.Register(ctx, []registry.Endpoint{other})
	fatal(t, err)
	_, err = nodeOne.Register(ctx, []registry.Endpoint{mine})
	fatal(t, err)
	_, err = nodeOne.Register(ctx, []registry.Endpoint{mine, other})
	denied("a node registers another's", registry.Denied, err)
	_, _, err = nodeOne.Unregister(ctx, []registry.Claim{{Key: other.Key}})
	denied("a node unregisters whoever holds it", registry.Denied, err)
	_, _, err = nodeOne.Unregister(ctx, []registry.Claim{{Key: other.Key, Node: "n1"}})
	denied("a node unregisters another's in its own name", registry.Conflict, err)
	_, err = reader.Register(ctx, []registry.Endpoint{mine})
	denied("a reader writes", registry.Denied, err)
	_, err = reader.List(ctx, registry.Query{})
	fatal(t, err)
	stranger := as("stranger", "")
	_, err = stranger.List(ctx, registry.Query{})
	denied("a stranger reads", registry.Denied, err)
	err = stranger.Watch(ctx, registry.Query{}, func(registry.Event) error { return nil })
	denied("a stranger watches", registry.Denied, err)
	nobody, err := remote.New(n.grpc, remote.WithTLS(&tls.Config{RootCAs: s.pool}))
	fatal(t, err)
	defer nobody.Close()
	_, err = nobody.List(ctx, registry.Query{})
	denied("without a certificate", registry.Unavailable, err)

	want := []string{
		"cn:writer register ok", "spiffe://example.org/c1/node/n1 register ok", "spiffe://example.org/c1/node/n1 register denied",
		"spiffe://example.org/c1/node/n1 unregister denied", "spiffe://example.org/c1/node/n1 unregister conflict", "cn:reader register denied",
	}
	if got := log.audits(t); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("audited:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i, named := range log.denials(t) {
		if named == "[]" {
			t.Errorf("denied write %d is audited without the endpoints that it was about", i)
		}
	}
}

// TestNodeReportsAndDrainsItsOwn: what is refused touches nothing, the other node's
// presence included.
func TestNodeReportsAndDrainsItsOwn(t *testing.T) {
	t.Parallel()
	s, log, present := newSigner(t), &lines{}, &presence{}
	n := guarded(t, s, log, func(c *registrar.Config) { c.Presence = present })
	as := func(cn, path string) *remote.Registry {
		c, err := remote.New(n.grpc, remote.WithTLS(s.client(cn, path)))
		fatal(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	mine, other, free := plainEndpoint("api", 1), plainEndpoint("api", 2), plainEndpoint("api", 3)
	other.Node = "n2"
	ctx := t.Context()
	writer, nodeOne := as("writer", ""), as("", "/c1/node/n1")
	_, err := writer.Register(ctx, []registry.Endpoint{other, free})
	fatal(t, err)
	fatal(t, present.is("n2"))
	refused := func(what string, want registry.Kind, err error) {
		t.Helper()
		if registry.KindOf(err) != want {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
	report := func(by *remote.Registry, r remote.Report) error {
		_, err := by.Report(ctx, r)
		return err
	}
	drain := func(key registry.Key, node string) error {
		_, err := nodeOne.SetHealth(ctx, []registry.Claim{{Key: key, Node: node}}, registry.Draining)
		return err
	}
	refused("a node reports another", registry.Denied, report(nodeOne, remote.Report{Node: "n2", Empty: true}))
	refused("a node says that another lives", registry.Denied, report(nodeOne, remote.Report{Node: "n3", PresenceOnly: true}))
	refused("a node reports what names another", registry.Denied, report(nodeOne, remote.Report{Node: "n1", Endpoints: []registry.Endpoint{other}}))
	refused("a reader reports", registry.Denied, report(as("reader", ""), remote.Report{Node: "n1", PresenceOnly: true}))
	fatal(t, present.is("n2"))

	fatal(t, report(nodeOne, remote.Report{Node: "n1", Endpoints: []registry.Endpoint{mine}}))
	fatal(t, present.is("n1", "n2"))
	eventually(t, "the report is seen", func() bool { return n.server.View().Snapshot(registry.Query{}).Len() == 3 })
	fatal(t, report(nodeOne, remote.Report{Node: "n1", Endpoints: []registry.Endpoint{mine}}))
	fatal(t, drain(mine.Key, "n1"))
	refused("a node drains another's", registry.Denied, drain(other.Key, "n2"))
	refused("a node drains whoever holds it", registry.Denied, drain(other.Key, ""))
	refused("a node drains another's in its own name", registry.Conflict, drain(other.Key, "n1"))
	refused("a node drains in its own name what no node holds", registry.Conflict, drain(free.Key, "n1"))
	_, err = as("reader", "").Sweep(ctx)
	refused("a reader asks for the sweep, which does not run", registry.NotFound, err)
	_, err = as("stranger", "").Sweep(ctx)
	refused("a stranger asks for the sweep", registry.Denied, err)
	_, err = as("writer", "").AcceptSweep(ctx, 1)
	refused("a writer lets ghosts pass the brake", registry.Denied, err)

	nodeName := "spiffe://example.org/c1/node/n1 "
	want := []string{
		"cn:writer register ok",
		nodeName + "report denied", nodeName + "report denied", nodeName + "report denied", "cn:reader report denied",
		nodeName + "report ok", nodeName + "set_health ok", nodeName + "set_health denied", nodeName + "set_health denied",
		nodeName + "set_health conflict", nodeName + "set_health conflict",
		"cn:writer sweep_accept denied",
	}
	if got := log.audits(t); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("audited:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// presence notes who was touched.
type presence struct {
	mu    sync.Mutex
	nodes []string
}

func (p *presence) TTL() time.Duration { return time.Minute }

func (p *presence) Touch(_ context.Context, nodes ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes = append(p.nodes, nodes...)
	return nil
}

// is returns an error unless exactly these nodes were touched.
func (p *presence) is(nodes ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := slices.Compact(slices.Sorted(slices.Values(p.nodes))); !slices.Equal(got, nodes) {
		return fmt.Errorf("nodes %v were touched, want %v", got, nodes)
	}
	return nil
}

func TestWhoMayDoWhatOverHTTP(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	n := guarded(t, s, &lines{})
	clients := map[string]*tls.Config{
		"reader": s.client("reader", ""), "n1": s.client("", "/c1/node/n1"), "stranger": s.client("stranger", ""), "nobody": {RootCAs: s.pool},
	}
	tests := []struct {
		who, method, path, body string
		status                  int
	}{
		{"nobody", "GET", "/livez", "", 200},
		{"nobody", "GET", "/readyz", "", 200},
		{"nobody", "GET", "/metrics", "", 403},
		{"nobody", "GET", "/v1/services", "", 403},
		{"stranger", "GET", "/v1/services", "", 403},
		{"reader", "GET", "/v1/services", "", 200},
		{"reader", "GET", "/metrics", "", 200},
		{"reader", "PUT", apiEndpoint + "10.0.0.1", "", 403},
		{"reader", "DELETE", apiEndpoint + "10.0.0.1", "", 403},
		{"n1", "PUT", apiEndpoint + "10.0.0.1", `{"node":"n1"}`, 200},
		{"n1", "PUT", apiEndpoint + "10.0.0.1", `{"node":"n2"}`, 403},
		{"n1", "PUT", apiEndpoint + "10.0.0.1", "", 403},
		{"n1", "DELETE", apiEndpoint + "10.0.0.1", "", 403},
		{"n1", "DELETE", apiEndpoint + "10.0.0.1?node=n1", "", 200},
	}
	for _, tt := range tests {
		transport := &http.Transport{TLSClientConfig: clients[tt.who].Clone()}
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "https"+n.http[len("http"):]+tt.path, strings.NewReader(tt.body))
		fatal(t, err)
		answer, err := transport.RoundTrip(req)
		fatal(t, err)
		if answer.StatusCode != tt.status {
			t.Errorf("%s: %s %s %s: status %d, want %d", tt.who, tt.method, tt.path, tt.body, answer.StatusCode, tt.status)
		}
		answer.Body.Close()
		transport.CloseIdleConnections()
	}
}

func TestLimitsOfAClient(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, func(c *registrar.Config) {
		c.Limits = access.Limits{Rate: 0.01, Burst: 3, Streams: 1}
	}).ready()
	ctx, cancel := context.WithCancel(t.Context())
	synced, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- n.client.Watch(ctx, registry.Query{}, func(e registry.Event) error {
			if e.Kind == registry.Synced {
				close(synced)
			}
			return nil
		})
	}()
	<-synced
	err := n.client.Watch(t.Context(), registry.Query{}, func(registry.Event) error { return nil })
	if registry.KindOf(err) != registry.Limited || !strings.Contains(err.Error(), "streams") {
		t.Errorf("a second stream: %v", err)
	}
	_, err = n.client.List(t.Context(), registry.Query{})
	fatal(t, err)
	_, err = n.client.Register(t.Context(), []registry.Endpoint{plainEndpoint("a", 1)})
	if registry.KindOf(err) != registry.Limited {
		t.Errorf("the fourth call: %v", err)
	}
	n.want("GET", "/v1/services", "", 429, `"kind":"limited"`)
	n.want("GET", "/readyz", "", 200)
	cancel()
	<-ended
}

func TestConnectionsOfAnAddress(t *testing.T) {
	t.Parallel()
	n := start(t, etcdtest.Start(t), origin, func(c *registrar.Config) { c.Limits = access.Limits{Connections: 1} }).ready()
	address := strings.TrimPrefix(n.http, "http://")
	first, err := net.Dial("tcp", address)
	fatal(t, err)
	second, err := net.Dial("tcp", address)
	fatal(t, err)
	defer second.Close()
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a second connection is served")
	}
	fatal(t, first.Close())
	eventually(t, "another is served once the first has ended", func() bool {
		code := 0
		if answer, err := http.Get(n.http + "/readyz"); err == nil {
			code = answer.StatusCode
			answer.Body.Close()
			http.DefaultClient.CloseIdleConnections()
		}
		return code == http.StatusOK
	})
}
