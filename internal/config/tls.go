package config

import (
	"crypto/tls"
	"fmt"
	"log/slog"
)

// EtcdTLS returns how the own etcd is reached, nil where nothing was said. The
// client certificate follows its files, as in ListenerTLS; the authorities are
// those of the start.
func (c Registrar) EtcdTLS(log *slog.Logger) (*tls.Config, error) {
	if c.EtcdCA == "" && c.EtcdCert == "" {
		return nil, nil
	}
	t, err := followingTLS(log, c.EtcdCA, c.EtcdCert, c.EtcdKey)
	if err != nil {
		return nil, fmt.Errorf("load etcd TLS: %w", err)
	}
	return t, nil
}

// followingTLS is how one connects with a client certificate, if there is one, that
// follows its files.
func followingTLS(log *slog.Logger, ca, cert, key string) (*tls.Config, error) {
	t, err := clientTLS(&digest{}, ca, cert, key)
	if err != nil || cert == "" {
		return t, err
	}
	own := &reloaded[tls.Certificate]{log: log, load: func(d *digest) (tls.Certificate, error) { return pair(d, cert, key) }}
	if err := own.first(); err != nil {
		return nil, err
	}
	t.Certificates = nil
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		now := own.get()
		return &now, nil
	}
	return t, nil
}

// EtcdPassword returns the content of EtcdPasswordFile without its line's end.
func (c Registrar) EtcdPassword() (string, error) {
	if c.EtcdPasswordFile == "" {
		return "", nil
	}
	p, err := password(&digest{}, c.EtcdPasswordFile)
	if err != nil {
		return "", fmt.Errorf("load --etcd-password-file: %w", err)
	}
	return p, nil
}

// ClientTLS returns how a registrar is reached by its clients: ca empty means
// the system's authorities, cert and key are for registrars that ask for them.
func ClientTLS(ca, cert, key string) (*tls.Config, error) {
	return clientTLS(&digest{}, ca, cert, key)
}
