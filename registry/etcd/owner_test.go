package etcd_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
)

func TestOtherOwner(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	want := func(when, owner string) {
		t.Helper()
		got, err := etcd.OtherOwner(t.Context(), client, "c")
		if err != nil || got != owner {
			t.Errorf("%s: %q, %v, want %q", when, got, err, owner)
		}
	}
	want("nothing is there", "")
	put(t, client, keyspace.RegionsPrefix+"stray", "")
	put(t, client, keyspace.RegionPrefix("c")+"k", "")
	want("the own region is there", "")

	lease, err := client.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), keyspace.RegionPrefix("b")+"k", "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	put(t, client, keyspace.OwnerKey("d"), "token")
	put(t, client, keyspace.RegionPrefix("d")+"k", "")
	want("others are mirrored", "")

	put(t, client, keyspace.RegionPrefix("e")+"k", "")
	want("another wrote here", "e")
}
