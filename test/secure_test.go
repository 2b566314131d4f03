package test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/internal/etcdtest"
)

// TestListenersWithTLS: a client without the right certificate gets nowhere.
func TestListenersWithTLS(t *testing.T) {
	ca := certtest.New(t)
	ca.Server("server")
	ca.Client("client")
	ca.Workload("n1", "/c1/node/n1")
	policy := filepath.Join(t.TempDir(), "auth.yaml")
	write(t, policy, "rules:\n- role: writer\n  identities: [cn:client]\n- role: node\n  identities: ['spiffe://example.org/*/node/{node}']\n")
	p := newRegistrar(t, "--data-dir", t.TempDir(), "--embedded-etcd-client-url", "http://127.0.0.1:0", "--auth", policy,
		"--tls-cert", ca.Cert("server"), "--tls-key", ca.Key("server"), "--tls-client-ca", ca.CA())
	p.launch()

	with := []string{"--registrar", p.grpc, "--tls-ca", ca.CA(), "--tls-cert", ca.Cert("client"), "--tls-key", ca.Key("client")}
	eventually(t, "the registrar serves a client with a certificate", func() bool {
		return aether(t, append([]string{"services"}, with...)...).code == 0
	})
	if r := aether(t, append([]string{"register", "hello", "10.0.0.1", "--port", "http=1"}, with...)...); r.code != 0 {
		t.Errorf("register with a certificate: exit code %d, %s", r.code, r.stderr)
	}
	asNode := []string{"--registrar", p.grpc, "--tls-ca", ca.CA(), "--tls-cert", ca.Cert("n1"), "--tls-key", ca.Key("n1")}
	for node, code := range map[string]int{"n1": 0, "n2": 1} {
		args := append([]string{"register", "hello", "10.0.0.2", "--port", "http=1", "--node", node}, asNode...)
		if r := aether(t, args...); r.code != code {
			t.Errorf("node n1 registers an endpoint of %s: exit code %d, %s", node, r.code, r.stderr)
		}
	}
	for name, without := range map[string][]string{
		"no certificate": {"--tls-ca", ca.CA()},
		"plain text":     {},
	} {
		args := append([]string{"services", "--registrar", p.grpc, "--timeout", "2s"}, without...)
		if r := aether(t, args...); r.code != 3 {
			t.Errorf("%s: exit code %d, %s; want 3", name, r.code, r.stdout)
		}
	}
}

// TestMissingCertificate is told before anything runs.
func TestMissingCertificate(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	r := aether(t, "registrar", "--data-dir", data, "--tls-cert", "no-such-file", "--tls-key", "no-such-file",
		"--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--embedded-etcd-client-url", "http://127.0.0.1:0")
	if r.code != 1 || !strings.Contains(r.stderr, "no-such-file") {
		t.Errorf("exit code %d, %q; want 1 and the file", r.code, r.stderr)
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the embedded etcd was started: %v", err)
	}
}

// TestEtcdWithTLS: the own etcd and the peer's serve only who has a certificate.
func TestEtcdWithTLS(t *testing.T) {
	ca := certtest.New(t)
	ca.Server("server")
	ca.Client("client")
	secure := func(c *embed.Config) {
		c.ListenClientUrls[0].Scheme, c.AdvertiseClientUrls[0].Scheme = "https", "https"
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = ca.Cert("server"), ca.Key("server")
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = ca.CA(), true
	}
	own, peer := etcdtest.Start(t, secure), etcdtest.Start(t, secure)
	file := filepath.Join(t.TempDir(), "a.yaml")
	write(t, file, "peers:\n- region: b\n  endpoints: [https://"+peer.Endpoint()+"]\n  ca: "+ca.CA()+
		"\n  cert: "+ca.Cert("client")+"\n  key: "+ca.Key("client")+"\n")
	a := startRegistrar(t, "--region", "a", "--config", file, "--etcd-endpoints", "https://"+own.Endpoint(),
		"--etcd-ca", ca.CA(), "--etcd-cert", ca.Cert("client"), "--etcd-key", ca.Key("client"))
	a.register("hello", "10.0.0.1", 1001)
	a.awaitEndpoints("hello", "a/local 10.0.0.1:1001")
	a.awaitState("/v1/peers", "b", "live")
}

// TestEtcdWithUsers: the own etcd asks who it is, and so does the peer's.
func TestEtcdWithUsers(t *testing.T) {
	regions := fleet(t, "a", "b")
	for _, r := range regions {
		requireUser(t, r.etcd, "secret")
	}
	dir := t.TempDir()
	password, wrong, file := filepath.Join(dir, "password"), filepath.Join(dir, "wrong"), filepath.Join(dir, "a.yaml")
	write(t, password, "secret\n")
	write(t, wrong, "guess\n")
	write(t, file, "peers:\n- region: b\n  endpoints: ["+regions[1].etcd.Endpoint()+"]\n  user: root\n  password-file: "+password+"\n")

	own := []string{"--region", "a", "--cluster-name", "a1", "--etcd-endpoints", regions[0].etcd.Endpoint(), "--etcd-user", "root"}
	refused := aether(t, append([]string{"registrar", "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--etcd-password-file", wrong}, own...)...)
	if refused.code != 1 || !strings.Contains(refused.stderr, "authentication failed") {
		t.Errorf("a wrong password: exit code %d, %s", refused.code, refused.stderr)
	}
	a := startRegistrar(t, append(own, "--config", file, "--lease-ttl", "5s", "--etcd-password-file", password)...)
	a.register("hello", "10.0.0.1", 1001)
	a.awaitState("/v1/peers", "b", "live")
	a.awaitEndpoints("hello", "a/a1 10.0.0.1:1001")
}

// requireUser lets only root in, with a password.
func requireUser(t *testing.T, p *etcdtest.Process, password string) {
	t.Helper()
	c := p.Client(t)
	if _, err := c.UserAdd(t.Context(), "root", password); err != nil {
		t.Fatal(err)
	}
	if _, err := c.UserGrantRole(t.Context(), "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
}
