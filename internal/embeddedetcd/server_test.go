package embeddedetcd_test

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/embeddedetcd"
)

func start(t *testing.T, dir string) *embeddedetcd.Server {
	t.Helper()
	s, err := embeddedetcd.Start(t.Context(), config(dir))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func config(dir string) embeddedetcd.Config {
	return embeddedetcd.Config{Dir: dir, ClientURL: "http://127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}
}

func client(t *testing.T, s *embeddedetcd.Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestDataSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	if _, err := client(t, s).Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}

	s = start(t, dir)
	defer s.Stop()
	got, err := client(t, s).Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Errorf("after the restart k is %v, want v", got.Kvs)
	}
}

func TestOneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	defer s.Stop()
	if _, err := embeddedetcd.Start(t.Context(), config(dir)); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second server on the directory: %v, want an error that names another process", err)
	}
}

func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := config(t.TempDir())
	c.ClientURL = "http://" + l.Addr().String()
	if _, err := embeddedetcd.Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "--embedded-etcd-client-url") {
		t.Errorf("a taken port: %v, want an error that says which flag to change", err)
	}
}

func TestClientURLRefused(t *testing.T) {
	for _, u := range []string{"127.0.0.1:2379", "http://127.0.0.1", "https://127.0.0.1:2379", "http://:2379", "http://[::1"} {
		c := config(t.TempDir())
		c.ClientURL = u
		if _, err := embeddedetcd.Start(t.Context(), c); err == nil {
			t.Errorf("%s was accepted", u)
		}
	}
}
