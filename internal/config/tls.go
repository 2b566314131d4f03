package config

import (
	"crypto/tls"
	"fmt"
	"log/slog"
)

// EtcdTLS returns how the own etcd is reached, to be asked for each connection; nil
// where nothing was said. Certificate and authorities follow their files, as in
// ListenerTLS.
func (c Registrar) EtcdTLS(log *slog.Logger) (now func() *tls.Config, err error) {
	if c.EtcdCA == "" && c.EtcdCert == "" {
		return nil, nil
	}
	now, err = followingTLS(log, c.EtcdCA, c.EtcdCert, c.EtcdKey)
	if err != nil {
		return nil, fmt.Errorf("load etcd TLS: %w", err)
	}
	return now, nil
}

// followingTLS is how one connects by what the files hold at that moment.
func followingTLS(log *slog.Logger, ca, cert, key string) (now func() *tls.Config, err error) {
	r := &reloaded[*tls.Config]{log: log, load: func(d *digest) (*tls.Config, error) { return clientTLS(d, ca, cert, key) }}
	if err := r.first(); err != nil {
		return nil, err
	}
	return r.get, nil
}

// EtcdPassword returns the content of EtcdPasswordFile without its line's end, to be
// asked for whenever it is used; nil where there is no file.
func (c Registrar) EtcdPassword(log *slog.Logger) (now func() string, err error) {
	if c.EtcdPasswordFile == "" {
		return nil, nil
	}
	r := &reloaded[string]{log: log, load: func(d *digest) (string, error) { return password(d, c.EtcdPasswordFile) }}
	if err := r.first(); err != nil {
		return nil, fmt.Errorf("load --etcd-password-file: %w", err)
	}
	return r.get, nil
}

// ClientTLS returns how a registrar is reached by its clients: ca empty means
// the system's authorities, cert and key are for registrars that ask for them.
func ClientTLS(ca, cert, key string) (*tls.Config, error) {
	return clientTLS(&digest{}, ca, cert, key)
}
