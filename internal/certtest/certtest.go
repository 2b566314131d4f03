// Package certtest gives tests certificates, in files, of an authority of their own.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates into a directory. Each is name.pem, with its key in
// name-key.pem; the authority's own is ca.pem.
type Authority struct {
	tb   testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns a new authority, with a directory that ends with the test.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, dir: tb.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// Cert is the file of a certificate.
func (a *Authority) Cert(name string) string { return filepath.Join(a.dir, name+".pem") }

// Key is the file of a certificate's key.
func (a *Authority) Key(name string) string { return filepath.Join(a.dir, name+"-key.pem") }

// CA is the file of the authority's certificate.
func (a *Authority) CA() string { return a.Cert("ca") }

// Server issues a certificate for 127.0.0.1, which its holder may show as a client
// too, as etcd does to itself.
func (a *Authority) Server(name string) {
	a.tb.Helper()
	a.issue(name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// Client issues a client's certificate whose common name is name.
func (a *Authority) Client(name string) {
	a.tb.Helper()
	a.issue(name, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// Workload issues a client's certificate whose URI is a SPIFFE ID of example.org
// with that path.
func (a *Authority) Workload(name, path string) {
	a.tb.Helper()
	a.issue(name, &x509.Certificate{
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: path}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// TLS is how a client of this authority's servers connects, with the certificate of
// that name or, if it is empty, without one.
func (a *Authority) TLS(name string) *tls.Config {
	a.tb.Helper()
	t := &tls.Config{RootCAs: x509.NewCertPool()}
	t.RootCAs.AddCert(a.cert)
	if name != "" {
		pair, err := tls.LoadX509KeyPair(a.Cert(name), a.Key(name))
		if err != nil {
			a.tb.Fatal(err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t
}

func (a *Authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.check(err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	a.check(err)
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	a.check(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	a.check(err)
	a.write(a.Cert(name), "CERTIFICATE", der)
	a.write(a.Key(name), "PRIVATE KEY", private)
	cert, err := x509.ParseCertificate(der)
	a.check(err)
	return cert, key
}

func (a *Authority) write(path, kind string, der []byte) {
	a.tb.Helper()
	a.check(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func (a *Authority) check(err error) {
	a.tb.Helper()
	if err != nil {
		a.tb.Fatal(err)
	}
}
