package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// issue writes a certificate that signs itself, and its key.
func issue(t *testing.T, cert, key, name string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	fatal(t, err)
	b, err := x509.MarshalPKCS8PrivateKey(private)
	fatal(t, err)
	fatal(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	fatal(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}), 0o600))
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCertificatesFollowTheirFiles(t *testing.T) {
	dir := t.TempDir()
	c := Registrar{TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem")}
	issue(t, c.TLSCert, c.TLSKey, "first")
	r := &reloader{c: c, log: slog.New(slog.DiscardHandler)}
	r.stamp = r.stat()
	var err error
	r.current, err = r.load()
	fatal(t, err)
	name := func(now time.Time) string {
		leaf, err := x509.ParseCertificate(r.get(now).Certificates[0].Certificate[0])
		fatal(t, err)
		return leaf.Subject.CommonName
	}
	now := time.Now()
	if got := name(now); got != "first" {
		t.Errorf("at first %s", got)
	}
	issue(t, c.TLSCert, c.TLSKey, "the second")
	if got := name(now.Add(reloadEvery / 2)); got != "first" {
		t.Errorf("within the second the files were looked at: %s", got)
	}
	if got := name(now.Add(reloadEvery)); got != "the second" {
		t.Errorf("after it %s", got)
	}
	fatal(t, os.WriteFile(c.TLSKey, []byte("no key"), 0o600))
	if got := name(now.Add(2 * reloadEvery)); got != "the second" {
		t.Errorf("with a key that is wrong %s", got)
	}
	issue(t, c.TLSCert, c.TLSKey, "the third one")
	if got := name(now.Add(3 * reloadEvery)); got != "the third one" {
		t.Errorf("once it is right again %s", got)
	}
}

func TestListenersAskForCertificates(t *testing.T) {
	dir := t.TempDir()
	c := Registrar{TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem"), TLSClientCA: filepath.Join(dir, "cert.pem")}
	issue(t, c.TLSCert, c.TLSKey, "ca")
	for auth, want := range map[string]tls.ClientAuthType{"policy.yaml": tls.VerifyClientCertIfGiven, AuthOff: tls.RequireAndVerifyClientCert} {
		c.Auth = auth
		grpc, http, err := c.ListenerTLS(slog.New(slog.DiscardHandler))
		fatal(t, err)
		for listener, ask := range map[*tls.Config]tls.ClientAuthType{grpc: tls.RequireAndVerifyClientCert, http: want} {
			got, err := listener.GetConfigForClient(nil)
			fatal(t, err)
			if got.ClientAuth != ask || got.ClientCAs == nil {
				t.Errorf("with --auth %s a listener asks for %v, want %v", auth, got.ClientAuth, ask)
			}
		}
	}
}

func TestSamplePolicyIsRead(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "auth.yaml"))
	fatal(t, err)
	if _, err := ParseAccess(b); err != nil {
		t.Error(err)
	}
	for name, document := range map[string]string{"empty": "", "no rules": "rules: []", "an unknown key": "rule: []", "a role": "rules: [{role: x}]"} {
		if _, err := ParseAccess([]byte(document)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
