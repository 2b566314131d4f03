package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync"
)

// reloaded is what some files hold, loaded anew when they have changed.
type reloaded[T any] struct {
	load func(*digest) (T, error)
	log  *slog.Logger

	mu  sync.Mutex
	is  T
	err string
}

// first loads it for the first time: there is nothing to fall back on.
func (r *reloaded[T]) first() (err error) {
	r.is, err = r.load(&digest{})
	return err
}

// get returns what the files hold now or, while that is no use, what they held
// before.
func (r *reloaded[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.load(&digest{})
	if err == nil {
		r.is, r.err = now, ""
	} else if r.err != err.Error() {
		r.err = err.Error()
		r.log.Warn("going on with the certificate as it was", "error", err)
	}
	return r.is
}

// verifier accepts or refuses a client by its certificate.
type verifier func(tls.ConnectionState) error

func clientVerifier(d *digest, ca string) (verifier, error) {
	roots, err := pool(d, ca)
	if err != nil {
		return nil, err
	}
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("client shows no certificate")
		}
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		return err
	}, nil
}
