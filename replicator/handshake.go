package replicator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

const (
	// handshakeTimeout bounds one connection that is made to learn what is wrong.
	handshakeTimeout = 2 * time.Second
	// refusalTimeout is how long a server may take to refuse a client's certificate,
	// which in TLS 1.3 it does after the client takes the connection to be made.
	refusalTimeout = 500 * time.Millisecond
)

// Diagnose adds to the error of an etcd that does not answer in time what one of its
// endpoints says when TLS is tried with it: etcd's client tells of no more than the
// time it took. It returns err as it is where that is not the matter, or ctx is over,
// and takes a few seconds at most for each endpoint.
func Diagnose(ctx context.Context, peer Peer, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	for _, endpoint := range peer.Endpoints {
		if peer.TLS == nil && !strings.HasPrefix(endpoint, "https://") || strings.HasPrefix(endpoint, "http://") {
			continue
		}
		if refused := handshake(ctx, peer.TLS, endpoint); refused != nil {
			return fmt.Errorf("%w: TLS with %s: %w", err, endpoint, refused)
		}
	}
	return err
}

// handshake returns why TLS with an endpoint fails, nil if it does not.
func handshake(ctx context.Context, config *tls.Config, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	address := strings.TrimPrefix(endpoint, "https://")
	plain, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }() // it was only asked
	config = config.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	config.NextProtos = []string{"h2"}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	conn := tls.Client(plain, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(refusalTimeout)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // it waits for a request
	}
	return err
}
