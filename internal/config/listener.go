package config

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// reloadEvery is how often the files are looked at, by handshakes.
const reloadEvery = time.Second

// ListenerTLS returns what the gRPC and the HTTP listener present and ask of
// clients, nil where they speak plain text. Files that change count from the next
// handshake on, a second later at most; as long as what they hold is wrong, what
// they held before stays, and log is told. With --auth the HTTP listener lets in
// clients without a certificate: probes have none, and may do nothing else.
func (c Registrar) ListenerTLS(log *slog.Logger) (grpc, http *tls.Config, err error) {
	if c.TLSCert == "" {
		return nil, nil, nil
	}
	ask := tls.RequireAndVerifyClientCert
	if grpc, err = c.reloading(ask, log); err != nil {
		return nil, nil, err
	}
	if c.Auth != AuthOff {
		ask = tls.VerifyClientCertIfGiven
	}
	http, err = c.reloading(ask, log)
	return grpc, http, err
}

// reloading returns a configuration that follows its files.
func (c Registrar) reloading(ask tls.ClientAuthType, log *slog.Logger) (*tls.Config, error) {
	r := &reloader{c: c, ask: ask, log: log}
	r.stamp = r.stat()
	var err error
	if r.current, err = r.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.get(time.Now()), nil },
	}, nil
}

// reloader keeps a listener's TLS configuration in step with its files.
type reloader struct {
	c   Registrar
	ask tls.ClientAuthType
	log *slog.Logger

	mu      sync.Mutex
	current *tls.Config
	stamp   string
	looked  time.Time
}

func (r *reloader) get(now time.Time) *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.looked) < reloadEvery {
		return r.current
	}
	r.looked = now
	stamp := r.stat()
	if stamp == r.stamp {
		return r.current
	}
	next, err := r.load()
	if err != nil {
		r.log.Error("certificates have changed and cannot be loaded; those from before stay", "error", err)
		return r.current
	}
	r.log.Info("certificates reloaded", "cert", r.c.TLSCert)
	r.current, r.stamp = next, stamp
	return next
}

// stat names the state of the files, as far as it shows outside.
func (r *reloader) stat() string {
	stamp := ""
	for _, path := range []string{r.c.TLSCert, r.c.TLSKey, r.c.TLSClientCA} {
		if info, err := os.Stat(path); err == nil {
			stamp += fmt.Sprintf("%s %d %d;", path, info.Size(), info.ModTime().UnixNano())
		}
	}
	return stamp
}

func (r *reloader) load() (*tls.Config, error) {
	t, err := load("", r.c.TLSCert, r.c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("load listener TLS: %w", err)
	}
	t.NextProtos = []string{"h2", "http/1.1"}
	if r.c.TLSClientCA == "" {
		return t, nil
	}
	if t.ClientCAs, err = pool(r.c.TLSClientCA); err != nil {
		return nil, fmt.Errorf("load --tls-client-ca: %w", err)
	}
	t.ClientAuth = r.ask
	return t, nil
}
