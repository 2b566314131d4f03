package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/freeport"
)

// sick is a registrar whose etcd is away or, where silent is not nil, one that
// answers once silent is closed.
type sick struct {
	registryv1.UnimplementedRegistryServiceServer
	silent chan struct{}
}

func (s sick) answer() error {
	if s.silent != nil {
		<-s.silent // not the call's context: its end may reach the client as an answer
	}
	return status.Error(codes.Unavailable, "its etcd is away")
}

func (s sick) Register(_ context.Context, _ *registryv1.RegisterRequest) (*registryv1.RegisterResponse, error) {
	return nil, s.answer()
}

func (s sick) ListServices(_ context.Context, _ *registryv1.ListServicesRequest) (*registryv1.ListServicesResponse, error) {
	return nil, s.answer()
}

// serveSick serves s until the test ends and returns its address.
func serveSick(t *testing.T, s sick, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	registryv1.RegisterRegistryServiceServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		if s.silent != nil {
			close(s.silent)
		}
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// webServer serves HTTP/2 without gRPC, as a proxy does, and returns its address.
func webServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestErrorsOfClients: what is said, and the exit code, depend on how far it came.
func TestErrorsOfClients(t *testing.T) {
	nobody, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	secure := serveSick(t, sick{}, grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})))
	away, silent := serveSick(t, sick{}), serveSick(t, sick{silent: make(chan struct{})})
	const register, services = "register hello 10.0.0.1 --port http=1", "services"
	tests := []struct {
		command, registrar string
		code               int
		want               string
	}{
		{services, nobody.String(), exitUnsure, "is it running there?"},
		{register, nobody.String(), exitFailed, "is it running there?"},
		{services, away, exitUnsure, "its etcd is away; try again"},
		{register, away, exitUnsure, "its etcd is away; try again"},
		{services, silent, exitUnsure, "did not answer"},
		{register, silent, exitUnsure, "did not answer"},
		{services, secure, exitUnsure, "give --tls"},
		{register, away + " --tls", exitFailed, "give --tls"},
		{services, webServer(t), exitUnsure, "is no registrar"},
		{services, away + " --timeout 0s", exitUsage, "want more than zero"},
		{"sweep --dry-run --accept 3", away, exitUsage, "exclude each other"},
		{services, "http://" + away, exitUsage, "want host:port"},
		{services, "localhost", exitUsage, "want host:port"},
	}
	for _, tt := range tests {
		var out, errOut bytes.Buffer
		args := strings.Fields(tt.command + " --timeout 1s --registrar " + tt.registrar) // a later --timeout wins
		code := run(t.Context(), args, streams{out: &out, err: &errOut})
		if code != tt.code || !strings.Contains(errOut.String(), tt.want) {
			t.Errorf("aether %s: exit code %d, %q, want %d and %q", strings.Join(args, " "), code, errOut.String(), tt.code, tt.want)
		}
	}
}
