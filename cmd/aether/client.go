package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

const registrarVariable = "AETHER_REGISTRAR"

var errKeyPair = errors.New("--tls-cert and --tls-key go together: give both")

// clientFlags say how a registrar is reached.
type clientFlags struct {
	registrar     string
	tls           bool
	ca, cert, key string
	timeout       time.Duration

	contact contact
}

// clientCommand gives c what every client of a registrar takes.
func (a *app) clientCommand(c *cobra.Command) *cobra.Command {
	f, flags := &a.client, c.Flags()
	flags.StringVar(&f.registrar, "registrar", "", "gRPC address of a registrar (default $"+registrarVariable+", else "+config.DefaultGRPCAddress+")")
	flags.BoolVar(&f.tls, "tls", false, "use TLS, trusting the system's authorities")
	flags.StringVar(&f.ca, "tls-ca", "", "use TLS, trusting this PEM file's authorities")
	flags.StringVar(&f.cert, "tls-cert", "", "client certificate, PEM")
	flags.StringVar(&f.key, "tls-key", "", "its key, PEM")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long to wait for the registrar")
	return c
}

func (f *clientFlags) address() string {
	return cmp.Or(f.registrar, os.Getenv(registrarVariable), config.DefaultGRPCAddress)
}

func (f *clientFlags) dial() (*remote.Registry, error) {
	if (f.cert == "") != (f.key == "") {
		return nil, usage(errKeyPair)
	}
	if f.timeout <= 0 {
		return nil, usage(fmt.Errorf("--timeout %v: want more than zero", f.timeout))
	}
	if err := config.CheckRegistrar(f.address()); err != nil {
		return nil, usage(err)
	}
	options := []remote.Option{remote.WithDialOptions(grpc.WithStatsHandler(&f.contact))}
	if f.secure() {
		t, err := config.ClientTLS(f.ca, f.cert, f.key)
		if err != nil {
			return nil, usage(fmt.Errorf("load client TLS: %w", err))
		}
		options = append(options, remote.WithTLS(t))
	}
	r, err := remote.New(f.address(), options...)
	if err != nil {
		return nil, usage(fmt.Errorf("--registrar: %w", err))
	}
	return r, nil
}

// secure reports whether the flags ask for TLS.
func (f *clientFlags) secure() bool { return f.tls || f.ca != "" || f.cert != "" }

// ask connects to the registrar for one question. What could not be asked is not
// known: the exit code says so.
func (a *app) ask(ctx context.Context, question func(context.Context, *remote.Registry) error) error {
	err := a.tell(ctx, question)
	if err != nil && (unreachable(err) || otherTransport(err)) {
		return &exitError{code: exitUnsure, err: err}
	}
	return err
}

// tell connects to the registrar for one order. The exit code says so when whether
// it was carried out is not known.
func (a *app) tell(ctx context.Context, order func(context.Context, *remote.Registry) error) (err error) {
	r, err := a.client.dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, a.client.timeout)
	defer cancel()
	err = order(ctx, r)
	if unreachable(err) && a.client.contact.sent.Load() {
		return &exitError{code: exitUnsure, err: a.explain(err)}
	}
	return a.explain(err)
}

// explain adds what to do about a registrar that cannot answer, or cannot be asked.
func (a *app) explain(err error) error {
	c, at := &a.client.contact, a.client.address()
	switch {
	case err == nil:
		return nil
	case noRegistrar(err):
		return fmt.Errorf("what answers at %s is no registrar: %w; --registrar takes a registrar's gRPC address", at, err)
	case !unreachable(err):
		return err
	case c.answered.Load():
		return fmt.Errorf("the registrar at %s cannot do it now: %w; try again", at, err)
	case c.sent.Load():
		return fmt.Errorf("the registrar at %s was asked and did not answer: %w; try again", at, err)
	case otherTransport(err):
		return fmt.Errorf("the registrar at %s and this command do not speak the same: %w; give --tls or --tls-ca where it serves TLS, and neither where it serves plain text; --registrar takes its gRPC address", at, err)
	default:
		return fmt.Errorf("no answer from the registrar at %s: %w; is it running there? Name another with --registrar or %s", at, err, registrarVariable)
	}
}

// otherTransport reports whether err is of a connection that came about and whose
// ends did not understand, or trust, each other. gRPC tells it in its text alone.
func otherTransport(err error) bool {
	text := err.Error()
	return noRegistrar(err) || strings.Contains(text, "authentication handshake failed") || strings.Contains(text, "server preface")
}

// noRegistrar reports whether err is of an HTTP server that answered without gRPC,
// such as a proxy.
func noRegistrar(err error) bool {
	return strings.Contains(err.Error(), "unexpected HTTP status code received from server")
}

func unreachable(err error) bool {
	return registry.KindOf(err) == registry.Unavailable || errors.Is(err, context.DeadlineExceeded)
}
