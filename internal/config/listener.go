package config

import (
	"crypto/tls"
	"fmt"
	"log/slog"
)

// ListenerTLS returns what the gRPC and the HTTP listener present and ask of
// clients, nil where they speak plain text. Both follow their files: a connection
// that is made after a change gets the new ones. Files that do not fit while they
// are being replaced leave the former in use, which log is told. With --auth the
// HTTP listener lets in clients without a certificate: probes have none, and may
// do nothing else.
func (c Registrar) ListenerTLS(log *slog.Logger) (grpc, http *tls.Config, err error) {
	if c.TLSCert == "" {
		return nil, nil, nil
	}
	ask := tls.RequireAndVerifyClientCert
	if grpc, err = c.listener(ask, log); err != nil {
		return nil, nil, err
	}
	if c.Auth != AuthOff {
		ask = tls.VerifyClientCertIfGiven
	}
	http, err = c.listener(ask, log)
	return grpc, http, err
}

// listener is loaded whole for each connection, so that crypto/tls itself verifies
// clients, and says by which chain.
func (c Registrar) listener(ask tls.ClientAuthType, log *slog.Logger) (*tls.Config, error) {
	r := &reloaded[*tls.Config]{log: log, load: func(d *digest) (*tls.Config, error) { return c.listening(d, ask) }}
	if err := r.first(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.get(), nil },
	}, nil
}

func (c Registrar) listening(d *digest, ask tls.ClientAuthType) (*tls.Config, error) {
	t, err := clientTLS(d, "", c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("load listener TLS: %w", err)
	}
	t.NextProtos = []string{"h2", "http/1.1"}
	if c.TLSClientCA == "" {
		return t, nil
	}
	if t.ClientCAs, err = pool(d, c.TLSClientCA); err != nil {
		return nil, fmt.Errorf("load --tls-client-ca: %w", err)
	}
	t.ClientAuth = ask
	return t, nil
}
