package etcd_test

import (
	"context"
	"crypto/tls"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
)

func TestDialTwiceFindsOneStore(t *testing.T) {
	server := etcdtest.Start(t)
	var ids [2]string
	for i := range ids {
		client, id, err := etcd.Dial(t.Context(), etcd.DialConfig{Endpoints: []string{server.Endpoint()}})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = id
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	if ids[0] == "" || ids[0] != ids[1] {
		t.Errorf("store IDs %q, want twice the same", ids)
	}
}

func TestDialNobody(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	nobody := etcdtest.FreeAddress(t)
	_, _, err := etcd.Dial(ctx, etcd.DialConfig{Endpoints: []string{nobody}})
	if registry.KindOf(err) != registry.Unavailable || !strings.Contains(err.Error(), nobody) {
		t.Errorf("%v, want Unavailable and the endpoint", err)
	}
}

// A password that is changed, in etcd and in its file, is told the next time.
func TestPasswordFollows(t *testing.T) {
	server := etcdtest.Start(t)
	root := server.Client(t)
	for _, err := range []error{
		second(root.UserAdd(t.Context(), "root", "old")), second(root.UserGrantRole(t.Context(), "root", "root")),
		second(root.AuthEnable(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var password atomic.Value
	password.Store("old")
	client, _, err := etcd.Dial(t.Context(), etcd.DialConfig{
		Endpoints: []string{server.Endpoint()}, Username: "root", PasswordNow: func() string { return password.Load().(string) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.UserChangePassword(t.Context(), "root", "new"); err != nil {
		t.Fatal(err)
	}
	password.Store("new")
	if _, err := client.Get(t.Context(), "k"); err != nil {
		t.Errorf("after the change: %v", err)
	}
}

// Authorities that are changed count for the next connection.
func TestAuthoritiesFollow(t *testing.T) {
	first, next := certtest.New(t), certtest.New(t)
	first.Server("server")
	next.Server("server")
	server := etcdtest.Start(t, etcdtest.WithTLS(first.Cert("server"), first.Key("server"), ""))
	var now atomic.Pointer[tls.Config]
	now.Store(first.TLS(""))
	client, _, err := etcd.Dial(t.Context(), etcd.DialConfig{Endpoints: []string{"https://" + server.Endpoint()}, TLSNow: now.Load})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server.Stop()
	for to, from := range map[string]string{first.Cert("server"): next.Cert("server"), first.Key("server"): next.Key("server")} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now.Store(next.TLS(""))
	server.Restart()
	for deadline := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := client.Get(ctx, "k")
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the change: %v", err)
		}
	}
}
