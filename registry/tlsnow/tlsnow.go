// Package tlsnow lets gRPC clients follow certificates and authorities that change
// while they run.
package tlsnow

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials returns credentials of a client that shakes hands by what now returns
// at that moment. It is asked for each connection, from several goroutines, and never
// returns nil; what it returned is not changed any more. Connections that stand are
// left alone.
func Credentials(now func() *tls.Config) credentials.TransportCredentials {
	return following{credentials.NewTLS(now()), now}
}

type following struct {
	credentials.TransportCredentials
	now func() *tls.Config
}

// ClientHandshake implements credentials.TransportCredentials.
func (f following) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(f.now()).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (f following) Clone() credentials.TransportCredentials {
	return following{f.TransportCredentials.Clone(), f.now}
}
