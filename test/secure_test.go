package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/aether-federation/aether/internal/etcdtest"
)

// authority issues certificates into a directory.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// path is the file of a certificate, or of its key.
func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.pem and name-key.pem.
func (a *authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	write(a.t, a.path(name+".pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(a.t, a.path(name+"-key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// TestListenersWithTLS: a client without the right certificate gets nowhere.
func TestListenersWithTLS(t *testing.T) {
	ca := newAuthority(t)
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	ca.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	policy := filepath.Join(t.TempDir(), "auth.yaml")
	write(t, policy, "rules:\n- role: writer\n  identities: [cn:client]\n- role: node\n  identities: ['spiffe://example.org/*/node/{node}']\n")
	ca.issue("n1", &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/c1/node/n1"}},
	})
	p := newRegistrar(t, "--data-dir", t.TempDir(), "--embedded-etcd-client-url", "http://127.0.0.1:0", "--auth", policy,
		"--tls-cert", ca.path("server.pem"), "--tls-key", ca.path("server-key.pem"), "--tls-client-ca", ca.path("ca.pem"))
	p.launch()

	with := []string{"--registrar", p.grpc, "--tls-ca", ca.path("ca.pem"), "--tls-cert", ca.path("client.pem"), "--tls-key", ca.path("client-key.pem")}
	eventually(t, "the registrar serves a client with a certificate", func() bool {
		return aether(t, append([]string{"services"}, with...)...).code == 0
	})
	if r := aether(t, append([]string{"register", "hello", "10.0.0.1", "--port", "http=1"}, with...)...); r.code != 0 {
		t.Errorf("register with a certificate: exit code %d, %s", r.code, r.stderr)
	}
	asNode := []string{"--registrar", p.grpc, "--tls-ca", ca.path("ca.pem"), "--tls-cert", ca.path("n1.pem"), "--tls-key", ca.path("n1-key.pem")}
	for node, code := range map[string]int{"n1": 0, "n2": 1} {
		args := append([]string{"register", "hello", "10.0.0.2", "--port", "http=1", "--node", node}, asNode...)
		if r := aether(t, args...); r.code != code {
			t.Errorf("node n1 registers an endpoint of %s: exit code %d, %s", node, r.code, r.stderr)
		}
	}
	for name, without := range map[string][]string{
		"no certificate": {"--tls-ca", ca.path("ca.pem")},
		"plain text":     {},
	} {
		args := append([]string{"services", "--registrar", p.grpc, "--timeout", "2s"}, without...)
		if r := aether(t, args...); r.code != 3 {
			t.Errorf("%s: exit code %d, %s; want 3", name, r.code, r.stdout)
		}
	}
}

// TestEtcdWithTLS: the own etcd and the peer's serve only who has a certificate.
func TestEtcdWithTLS(t *testing.T) {
	ca := newAuthority(t)
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	ca.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	secure := func(c *embed.Config) {
		c.ListenClientUrls[0].Scheme, c.AdvertiseClientUrls[0].Scheme = "https", "https"
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = ca.path("server.pem"), ca.path("server-key.pem")
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = ca.path("ca.pem"), true
	}
	own, peer := etcdtest.Start(t, secure), etcdtest.Start(t, secure)
	file := filepath.Join(t.TempDir(), "a.yaml")
	write(t, file, "peers:\n- region: b\n  endpoints: [https://"+peer.Endpoint()+"]\n  ca: "+ca.path("ca.pem")+
		"\n  cert: "+ca.path("client.pem")+"\n  key: "+ca.path("client-key.pem")+"\n")
	a := startRegistrar(t, "--region", "a", "--config", file, "--etcd-endpoints", "https://"+own.Endpoint(),
		"--etcd-ca", ca.path("ca.pem"), "--etcd-cert", ca.path("client.pem"), "--etcd-key", ca.path("client-key.pem"))
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
