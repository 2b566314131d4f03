package etcd_test

import (
	"context"
	"strings"
	"testing"
	"time"

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
