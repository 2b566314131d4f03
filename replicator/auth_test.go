package replicator

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// restrict turns authentication on at the peer, with a user for origin a that may
// do what a mirror needs and no more, and makes the rig's mirror that user.
func (r *rig) restrict() {
	r.t.Helper()
	ctx, c := r.t.Context(), r.to
	do := func(_ any, err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	do(c.Put(ctx, keyspace.StoreKey, "the-peer"))
	do(c.UserAdd(ctx, "root", "secret"))
	do(c.UserGrantRole(ctx, "root", "root"))
	do(c.RoleAdd(ctx, "mirror-a"))
	for _, prefix := range []string{r.prefix, keyspace.MirrorPrefix("a")} {
		do(c.RoleGrantPermission(ctx, "mirror-a", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	do(c.RoleGrantPermission(ctx, "mirror-a", keyspace.StoreKey, "", clientv3.PermissionType(clientv3.PermRead)))
	r.user, r.password = "a", "also secret"
	do(c.UserAdd(ctx, r.user, r.password))
	do(c.UserGrantRole(ctx, r.user, "mirror-a"))
	do(c.AuthEnable(ctx))
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{r.peer.Endpoint()}, Username: "root", Password: "secret"})
	do(root, err)
	r.t.Cleanup(func() { _ = root.Close() })
	r.to = root
}

// Failure case 1, its first half: a peer with authentication and a user for the
// two prefixes alone.
func TestARestrictedUserIsEnough(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.restrict()
	r.put(0, 3000, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	r.put(0, 100, "w")
	r.waitMirrored()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	watched := r.recordChanges()
	second := r.start()
	r.waitState(second, StateLive)
	if puts, deletes := watched.stop(); puts != 0 || deletes != 0 {
		t.Errorf("the handover made %d puts and %d deletes", puts, deletes)
	}
}

func TestAUserWithoutPermissionIsToldSo(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.restrict()
	if _, err := r.to.RoleRevokePermission(t.Context(), "mirror-a", r.prefix, clientv3.GetPrefixRangeEnd(r.prefix)); err != nil {
		t.Fatal(err)
	}
	r.put(0, 10, "v")
	rep := r.start()
	eventually(t, "the error says what is missing", func() string {
		for _, s := range rep.Status() {
			if strings.Contains(s.LastError, `user "a" at peer b needs readwrite on `+r.prefix) {
				return ""
			}
		}
		return "it does not"
	})
}
