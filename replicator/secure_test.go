package replicator

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/keyspace"
)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// enableAuth makes root the only user, who is then r.to.
func (r *rig) enableAuth() {
	r.t.Helper()
	ctx := r.t.Context()
	must[*clientv3.AuthUserAddResponse](r.t)(r.to.UserAdd(ctx, "root", "secret"))
	must[*clientv3.AuthUserGrantRoleResponse](r.t)(r.to.UserGrantRole(ctx, "root", "root"))
	must[*clientv3.AuthEnableResponse](r.t)(r.to.AuthEnable(ctx))
	r.to = must[*clientv3.Client](r.t)(clientv3.New(clientv3.Config{Endpoints: []string{r.peer.Endpoint()}, Username: "root", Password: "secret", Logger: zap.NewNop()}))
	r.t.Cleanup(func() { _ = r.to.Close() })
}

func (r *rig) bootstrap(g Grant) map[StepOutcome][]string {
	r.t.Helper()
	steps := map[StepOutcome][]string{}
	if err := Bootstrap(r.t.Context(), r.to, g, func(s Step) { steps[s.Outcome] = append(steps[s.Outcome], s.Text) }); err != nil {
		r.t.Fatal(err)
	}
	return steps
}

func (r *rig) check(p Peer) (problems, warnings []string) {
	r.t.Helper()
	result := Check(r.t.Context(), "a", p, r.from)
	for _, f := range result.Findings {
		switch f.Outcome {
		case OutcomeProblem:
			problems = append(problems, f.Check+": "+f.Detail)
		case OutcomeWarning:
			warnings = append(warnings, f.Check+": "+f.Detail)
		case OutcomeUnknown:
			r.t.Errorf("%s could not be told: %s", f.Check, f.Detail)
		}
	}
	return problems, warnings
}

// TestBootstrapIsEnoughAndNoMore: what it grants carries a mirror, its check finds
// nothing, and to do it again changes nothing.
func TestBootstrapIsEnoughAndNoMore(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	if steps := r.bootstrap(Grant{Origin: "a", Password: "p1"}); len(steps[StepWarning]) != 1 || len(steps[StepDone]) != 7 {
		t.Errorf("without authentication: %v", steps)
	}
	r.enableAuth()
	if steps := r.bootstrap(Grant{Origin: "a", Password: "p1"}); len(steps[StepDone]) != 0 || len(steps[StepWarning]) != 0 {
		t.Errorf("again: %v", steps)
	}
	r.user, r.password = "a", "p1"
	before := r.revisions()
	problems, warnings := r.check(r.peerConfig())
	if len(problems) != 0 || len(warnings) != 1 || !strings.Contains(warnings[0], "plain text") {
		t.Errorf("problems %q, warnings %q; want one about plain text", problems, warnings)
	}
	if left := must[*clientv3.GetResponse](t)(r.to.Get(t.Context(), keyspace.Root, clientv3.WithPrefix(), clientv3.WithKeysOnly())); left.Count != 1 {
		t.Errorf("after the check there are %v, want the store ID alone (revisions %s, then %s)", left.Kvs, before, r.revisions())
	}
	r.put(0, 200, "v")
	r.start()
	r.waitMirrored()

	if steps := r.bootstrap(Grant{Origin: "a", Password: "p2"}); len(steps[StepDone]) != 1 {
		t.Errorf("with another password: %v", steps)
	}
	other := keyspace.RegionPrefix("b")
	must[*clientv3.AuthRoleGrantPermissionResponse](t)(r.to.RoleGrantPermission(t.Context(), "mirror-a", other, keyspace.RangeEnd(other), clientv3.PermissionType(clientv3.PermReadWrite)))
	if steps := r.bootstrap(Grant{Origin: "a", Password: "p2"}); len(steps[StepWarning]) != 1 {
		t.Errorf("with a role that may too much: %v", steps)
	}
	r.password = "p2"
	if problems, _ := r.check(r.peerConfig()); len(problems) != 1 || !strings.HasPrefix(problems[0], "no write to "+other) {
		t.Errorf("problems of a user who may too much: %q", problems)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.bootstrap(Grant{Origin: "a", Password: "p1"})
	first := func(p Peer) string {
		problems, _ := r.check(p)
		if len(problems) == 0 {
			return "none"
		}
		return problems[0]
	}
	if got := first(r.peerConfig()); !strings.Contains(got, "anybody") {
		t.Errorf("without authentication: %s", got)
	}
	r.enableAuth()
	for want, who := range map[string][2]string{
		"wants a user":           {},
		"wrong name or password": {"a", "guess"},
		"root is no user":        {"root", "secret"},
	} {
		r.user, r.password = who[0], who[1]
		if got := first(r.peerConfig()); !strings.Contains(got, want) {
			t.Errorf("as %q: %s, want %s", who[0], got, want)
		}
	}
	must[store](t)(identify(t.Context(), r.from))
	if got := first(Peer{Region: "b", Endpoints: []string{r.origin.Endpoint()}}); got == "none" {
		t.Error("of the own etcd as a peer: nothing")
	}
}

// secured makes the rig's peer one with TLS that knows its users by certificate.
func secured(t *testing.T) (*rig, *certtest.Authority) {
	ca := certtest.New(t)
	ca.Server("server")
	ca.Client("root")
	ca.Client("a")
	r := newRig(t, etcdtest.WithTLS(ca.Cert("server"), ca.Key("server"), ca.CA()))
	r.to = must[*clientv3.Client](t)(clientv3.New(clientv3.Config{Endpoints: []string{r.peer.Endpoint()}, TLS: ca.TLS("root"), Logger: zap.NewNop()}))
	t.Cleanup(func() { _ = r.to.Close() })
	r.bootstrap(Grant{Origin: "a", NoPassword: true})
	must[*clientv3.AuthUserAddResponse](t)(r.to.UserAddWithOptions(t.Context(), "root", "", &clientv3.UserAddOptions{NoPassword: true}))
	must[*clientv3.AuthUserGrantRoleResponse](t)(r.to.UserGrantRole(t.Context(), "root", "root"))
	must[*clientv3.AuthEnableResponse](t)(r.to.AuthEnable(t.Context()))
	return r, ca
}

// TestACertificateIsRotatedUnderAMirror: its user comes from the certificate, and
// a new one takes over without a write.
func TestACertificateIsRotatedUnderAMirror(t *testing.T) {
	noLeaks(t)
	r, ca := secured(t)
	r.put(0, 200, "v")
	var version atomic.Int64
	peer := r.peerConfig()
	peer.Credentials = func() (Credentials, error) {
		return Credentials{TLS: ca.TLS("a"), Version: fmt.Sprint(version.Load())}, nil
	}
	if problems, warnings := r.check(peer); len(problems)+len(warnings) != 0 {
		t.Errorf("problems %q, warnings %q", problems, warnings)
	}
	rep := r.start(peer)
	r.waitState(rep, StateLive)
	r.waitMirrored()
	since := r.found().owner.GetSince()
	watched := r.recordChanges()
	ca.Client("a")
	version.Add(1)
	eventually(t, "another session", func() string {
		if now := r.found().owner.GetSince(); now.AsTime().After(since.AsTime()) {
			return ""
		}
		return "it is the first"
	})
	r.waitState(rep, StateLive)
	if puts, deletes := watched.stop(); puts != 0 || deletes != 0 {
		t.Errorf("the rotation made %d puts and %d deletes", puts, deletes)
	}
	r.put(0, 10, "w")
	r.waitMirrored()
}

func TestAPeerThatIsNotTrustedIsTold(t *testing.T) {
	noLeaks(t)
	r, ca := secured(t)
	stranger := certtest.New(t)
	for name, p := range map[string]Peer{
		"an unknown authority": {Region: "b", Endpoints: []string{r.endpoint}, TLS: stranger.TLS("")},
		"no certificate":       {Region: "b", Endpoints: []string{r.endpoint}, TLS: ca.TLS("")},
	} {
		problems, _ := r.check(p)
		if len(problems) != 1 || !strings.Contains(problems[0], "certificate") {
			t.Errorf("%s: problems %q", name, problems)
		}
		rep := r.start(p)
		eventually(t, name+" in the status", func() string {
			if last := statusOfB(rep).LastError; !strings.Contains(last, "certificate") {
				return last
			}
			return ""
		})
		if err := rep.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestAPasswordIsChangedUnderAMirror: the old one is refused from then on, and the
// mirror goes on with the new one before its leases run out.
func TestAPasswordIsChangedUnderAMirror(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.bootstrap(Grant{Origin: "a", Password: "old"})
	r.enableAuth()
	r.put(0, 200, "v")
	var password atomic.Value
	password.Store("old")
	peer := r.peerConfig()
	peer.Credentials = func() (Credentials, error) {
		p := password.Load().(string)
		return Credentials{Username: "a", Password: p, Version: p}, nil
	}
	rep := r.start(peer)
	r.waitState(rep, StateLive)
	r.waitMirrored()
	watched := r.recordChanges()
	must[*clientv3.AuthUserChangePasswordResponse](t)(r.to.UserChangePassword(t.Context(), "a", "new"))
	if problems, _ := r.check(peer); len(problems) == 0 {
		t.Error("the old password is not refused")
	}
	password.Store("new")
	r.put(500, 501, "v")
	r.waitMirrored()
	r.waitState(rep, StateLive)
	if puts, deletes := watched.stop(); puts != 1 || deletes != 0 {
		t.Errorf("the change made %d puts and %d deletes, want the one put after it", puts, deletes)
	}
}

func TestCredentialsThatCannotBeLoadedKeepTheMirror(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 10, "v")
	var broken atomic.Bool
	peer := r.peerConfig()
	peer.Credentials = func() (Credentials, error) {
		if broken.Load() {
			return Credentials{}, fmt.Errorf("half a certificate")
		}
		return Credentials{}, nil
	}
	rep := r.start(peer)
	r.waitState(rep, StateLive)
	broken.Store(true)
	eventually(t, "a warning", func() string {
		if w := statusOfB(rep).Warnings; slices.ContainsFunc(w, func(s string) bool { return strings.Contains(s, "half a certificate") }) {
			return ""
		}
		return "there is none"
	})
	r.put(0, 20, "w")
	r.waitMirrored()
	broken.Store(false)
	eventually(t, "no warning", func() string { return strings.Join(statusOfB(rep).Warnings, ", ") })
}

func TestVersionsThatCannotIsolate(t *testing.T) {
	for version, want := range map[string]string{
		"3.4.30": "3.5.33", "3.5.32": "3.5.33", "3.5.33": "", "3.5.40": "", "3.6.13": "3.6.14", "3.6.14": "",
		"3.7.0": "3.7.1", "3.7.1-rc.0": "3.7.1", "3.7.3": "", "3.8.0": "", "4.0.0": "", "2.3.8": "3.5.33",
	} {
		if got, err := tooOldToIsolate(version); got != want || err != nil {
			t.Errorf("%s: upgrade to %q, %v; want %q", version, got, err, want)
		}
	}
	if _, err := tooOldToIsolate("devel"); err == nil {
		t.Error("a version that is none was accepted")
	}
}

func statusOfB(rep *running) PeerStatus {
	for _, s := range rep.Status() {
		if s.Region == "b" {
			return s
		}
	}
	return PeerStatus{}
}

// TestAPeerThatCannotIsolateIsWarnedOf: with users, and only then.
func TestAPeerThatCannotIsolateIsWarnedOf(t *testing.T) {
	known := isolating
	t.Cleanup(func() { isolating = known })
	isolating = []release{{3, 7, 99}}
	r := newRig(t)
	r.bootstrap(Grant{Origin: "a", Password: "p"})
	r.enableAuth()
	r.user, r.password = "a", "p"
	rep := r.start()
	eventually(t, "a warning", func() string {
		if strings.Contains(strings.Join(statusOfB(rep).Warnings, " "), "upgrade it to 3.7.99") {
			return ""
		}
		return "there is none"
	})
	if problems, warnings := r.check(r.peerConfig()); len(problems) != 0 || len(warnings) != 2 {
		t.Errorf("problems %q, warnings %q; want those of plain text and of the version", problems, warnings)
	}
}
