package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// userAgent is how endpoints know who asks.
const userAgent = "aether-agent"

// asker asks endpoints. Each question has a connection of its own: an endpoint
// that takes no new ones is not well, whatever its old ones do.
type asker struct {
	// clients by how they check certificates and for whom.
	strict, lenient *http.Client
}

func newAsker() *asker {
	return &asker{strict: httpClient(false), lenient: httpClient(true)}
}

func httpClient(skipVerify bool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:        dialTarget,
			DisableKeepAlives:  true,
			DisableCompression: true,
			TLSClientConfig:    &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: skipVerify},
			ReadBufferSize:     1 << 10,
			WriteBufferSize:    1 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type targetKey struct{}

// dialTarget connects to the check's target, whatever host the request is for.
func dialTarget(ctx context.Context, network, address string) (net.Conn, error) {
	if target, ok := ctx.Value(targetKey{}).(netip.AddrPort); ok {
		address = target.String()
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// ask returns nil if the endpoint is well.
func (a *asker) ask(ctx context.Context, c Check) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err := a.byKind(ctx, c)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", c.Timeout)
	}
	return err
}

func (a *asker) byKind(ctx context.Context, c Check) error {
	switch c.Kind {
	case HTTP:
		return a.askHTTP(ctx, c)
	case GRPC:
		return askGRPC(ctx, c)
	default:
		return askTCP(ctx, c)
	}
}

func askTCP(ctx context.Context, c Check) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Target.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

func (a *asker) askHTTP(ctx context.Context, c Check) error {
	scheme, client := "http", a.strict
	if c.TLS {
		scheme = "https"
	}
	if c.SkipVerify {
		client = a.lenient
	}
	host := cmp.Or(c.Host, c.Target.String())
	ctx = context.WithValue(ctx, targetKey{}, c.Target)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+host+c.Path, nil)
	if err != nil {
		return withoutURL(err)
	}
	req.Header.Set("User-Agent", userAgent)
	answer, err := client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode < c.StatusFrom || answer.StatusCode > c.StatusTo {
		return fmt.Errorf("answered with status %d", answer.StatusCode)
	}
	return nil
}

// withoutURL drops what the one who configured the check knows.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

func askGRPC(ctx context.Context, c Check) (err error) {
	creds := insecure.NewCredentials()
	if c.TLS {
		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.SkipVerify, ServerName: c.Host})
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Target.String(),
		grpc.WithTransportCredentials(creds), grpc.WithUserAgent(userAgent), grpc.WithDisableServiceConfig())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: c.Service})
	if err != nil {
		return errors.New(status.Convert(err).Message())
	}
	if s := answer.GetStatus(); s != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("says %s", s)
	}
	return nil
}
