package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// EtcdTLS returns how the own etcd is reached, nil where nothing was said.
func (c Registrar) EtcdTLS() (*tls.Config, error) {
	if c.EtcdCA == "" && c.EtcdCert == "" {
		return nil, nil
	}
	t, err := load(c.EtcdCA, c.EtcdCert, c.EtcdKey)
	if err != nil {
		return nil, fmt.Errorf("load etcd TLS: %w", err)
	}
	return t, nil
}

// EtcdPassword returns the content of EtcdPasswordFile without its line's end.
func (c Registrar) EtcdPassword() (string, error) {
	p, err := password(c.EtcdPasswordFile)
	if err != nil {
		return "", fmt.Errorf("load --etcd-password-file: %w", err)
	}
	return p, nil
}

// ClientTLS returns how a registrar is reached by its clients: ca empty means
// the system's authorities, cert and key are for registrars that ask for them.
func ClientTLS(ca, cert, key string) (*tls.Config, error) { return load(ca, cert, key) }

func load(ca, cert, key string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		p, err := pool(ca)
		if err != nil {
			return nil, err
		}
		t.RootCAs = p
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

func pool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, errors.New(path + " holds no PEM certificate")
	}
	return p, nil
}
