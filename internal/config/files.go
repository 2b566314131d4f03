package config

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
)

// digest reads files and remembers what they held, for whoever wants to know
// whether that changes.
type digest struct{ content []byte }

func (d *digest) read(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err // it names the path
	}
	one := sha256.Sum256(b)
	d.content = append(d.content, one[:]...)
	return b, nil
}

func (d *digest) sum() string {
	all := sha256.Sum256(d.content)
	return hex.EncodeToString(all[:])
}

// clientTLS is how one connects: ca empty means the system's authorities.
func clientTLS(d *digest, ca, cert, key string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		p, err := pool(d, ca)
		if err != nil {
			return nil, err
		}
		t.RootCAs = p
	}
	if cert != "" {
		p, err := pair(d, cert, key)
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{p}
	}
	return t, nil
}

func pair(d *digest, cert, key string) (tls.Certificate, error) {
	certPEM, err := d.read(cert)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read certificate: %w", err)
	}
	keyPEM, err := d.read(key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read key: %w", err)
	}
	p, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("load certificate %s with key %s: %w", cert, key, err)
	}
	return p, nil
}

func pool(d *digest, path string) (*x509.CertPool, error) {
	pem, err := d.read(path)
	if err != nil {
		return nil, fmt.Errorf("read authorities: %w", err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, errors.New(path + " holds no PEM certificate")
	}
	return p, nil
}

// password is a file's content without its line's end.
func password(d *digest, path string) (string, error) {
	b, err := d.read(path)
	if err != nil {
		return "", fmt.Errorf("read password: %w", err)
	}
	p := string(bytes.TrimRight(b, "\r\n"))
	if p == "" {
		return "", errors.New("password file " + path + " is empty")
	}
	return p, nil
}

// Password is the content of a file with a password, without its line's end.
func Password(path string) (string, error) { return password(&digest{}, path) }
