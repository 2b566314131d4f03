package registrar_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// certificate returns a certificate for 127.0.0.1 that signs itself, and a pool
// that trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fatal(t, err)
	leaf, err := x509.ParseCertificate(der)
	fatal(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

func TestTLSOnBothListeners(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	n := start(t, etcdtest.Start(t), origin, func(c *registrar.Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	}).ready()
	client, err := remote.New(n.grpc, remote.WithTLS(&tls.Config{RootCAs: pool}))
	fatal(t, err)
	defer client.Close()
	_, err = client.List(t.Context(), registry.Query{})
	fatal(t, err)
	if _, err := n.client.List(t.Context(), registry.Query{}); registry.KindOf(err) != registry.Unavailable {
		t.Errorf("list in plain text: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https"+n.http[len("http"):]+"/readyz", nil)
	fatal(t, err)
	answer, err := transport.RoundTrip(req)
	fatal(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	fatal(t, err)
	if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 {
		t.Errorf("%s %s: %s", answer.Proto, answer.Status, body)
	}
}
