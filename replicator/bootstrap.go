package replicator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

// Grant is what a peer's etcd has to let an origin do: a role with the least that
// a mirror needs, and a user that has it.
type Grant struct {
	// Origin is the region that mirrors to this etcd.
	Origin string
	// User and Role are the origin's name, and mirror-<origin>, if empty.
	User, Role string
	// Password of the user. With NoPassword it has none, and a client certificate
	// whose common name is User proves who it is.
	Password   string
	NoPassword bool
}

// permission is one that a role has or needs.
type permission struct {
	kind     authpb.Permission_Type
	key, end string
}

func (p permission) String() string {
	what := strings.ToLower(p.kind.String())
	if p.end == "" {
		return what + " " + p.key
	}
	return what + " " + p.key + " to " + p.end
}

// WithDefaults returns g with nothing left open, or what is wrong with it.
func (g Grant) WithDefaults() (Grant, error) {
	if err := registry.ValidateRegion(g.Origin); err != nil {
		return g, fmt.Errorf("origin: %w", err)
	}
	if g.Origin == unnamedRegion {
		return g, fmt.Errorf("origin: a region named %s cannot be told from another's: name it", unnamedRegion)
	}
	if g.User == "" {
		g.User = g.Origin
	}
	if g.Role == "" {
		g.Role = "mirror-" + g.Origin
	}
	switch {
	case g.User == "root" || g.Role == "root":
		return g, errors.New("root may do everything: give the mirror a user and a role of its own")
	case g.NoPassword && g.Password != "":
		return g, errors.New("a user without a password takes none")
	}
	return g, nil
}

// permissions are the least that a mirror needs.
func (g Grant) permissions() []permission {
	out := []permission{{kind: authpb.READ, key: keyspace.StoreKey}}
	for _, prefix := range []string{keyspace.RegionPrefix(g.Origin), keyspace.MirrorPrefix(g.Origin)} {
		out = append(out, permission{authpb.READWRITE, prefix, keyspace.RangeEnd(prefix)})
	}
	return out
}

// Step is one thing that Bootstrap did, found done, or leaves to the operator.
type Step struct {
	// Outcome is done, present or warning.
	Outcome StepOutcome `json:"outcome"`
	Text    string      `json:"text"`
}

// StepOutcome says what became of a step.
type StepOutcome string

// The outcomes of steps.
const (
	StepDone    StepOutcome = "done"
	StepPresent StepOutcome = "present"
	StepWarning StepOutcome = "warning"
)

// Bootstrap makes the store ID, the role and the user of a grant on a peer's etcd,
// as far as they are not there, and tells each step to report. Called again it
// changes nothing, except that a password is set once more where authentication is
// off and nobody can tell whether it is the same. It takes nothing back and does not turn authentication on: what
// is more than a mirror needs, and that nobody is asked who he is, are warnings.
// The client's user must be root where there is authentication.
func Bootstrap(ctx context.Context, c *clientv3.Client, g Grant, report func(Step)) error {
	g, err := g.WithDefaults()
	if err != nil {
		return err
	}
	if g.Password == "" && !g.NoPassword {
		return errors.New("a user needs a password, or a client certificate instead of one")
	}
	b := bootstrap{client: c, grant: g, report: report}
	for _, step := range []func(context.Context) error{b.store, b.role, b.user, b.auth} {
		if err := step(ctx); err != nil {
			return explainAdmin(err)
		}
	}
	return nil
}

func explainAdmin(err error) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty) {
		return fmt.Errorf("%w: this needs the etcd's root user", err)
	}
	return err
}

// bootstrap is one run of Bootstrap.
type bootstrap struct {
	client *clientv3.Client
	grant  Grant
	report func(Step)
}

func (b bootstrap) tell(outcome StepOutcome, format string, args ...any) {
	b.report(Step{outcome, fmt.Sprintf(format, args...)})
}

func (b bootstrap) store(ctx context.Context) error {
	got, err := b.client.Get(ctx, keyspace.StoreKey)
	if err != nil {
		return fmt.Errorf("read store ID: %w", err)
	}
	if len(got.Kvs) > 0 {
		b.tell(StepPresent, "store ID %s", got.Kvs[0].Value)
		return nil
	}
	id, err := createStoreID(ctx, b.client)
	if err != nil {
		return fmt.Errorf("create store ID: %w", err)
	}
	b.tell(StepDone, "store ID %s", id)
	return nil
}

func (b bootstrap) role(ctx context.Context) error {
	name := b.grant.Role
	got, err := b.client.RoleGet(ctx, name)
	switch {
	case errors.Is(err, rpctypes.ErrRoleNotFound):
		if _, err := b.client.RoleAdd(ctx, name); err != nil {
			return fmt.Errorf("add role %s: %w", name, err)
		}
		b.tell(StepDone, "role %s", name)
	case err != nil:
		return fmt.Errorf("read role %s: %w", name, err)
	default:
		b.tell(StepPresent, "role %s", name)
	}
	has := permissionsOf((*clientv3.AuthRoleGetResponse)(got))
	wants := b.grant.permissions()
	for _, p := range wants {
		if err := b.permit(ctx, p, slices.Contains(has, p)); err != nil {
			return err
		}
	}
	for _, p := range has {
		if !slices.ContainsFunc(wants, func(w permission) bool { return w.key == p.key && w.end == p.end }) {
			b.tell(StepWarning, "role %s may also %s: take it back, unless it is meant", name, p)
		}
	}
	return nil
}

func permissionsOf(got *clientv3.AuthRoleGetResponse) []permission {
	if got == nil {
		return nil
	}
	out := make([]permission, len(got.Perm))
	for i, p := range got.Perm {
		out[i] = permission{p.PermType, string(p.Key), string(p.RangeEnd)}
	}
	return out
}

func (b bootstrap) permit(ctx context.Context, p permission, present bool) error {
	if present {
		b.tell(StepPresent, "%s may %s", b.grant.Role, p)
		return nil
	}
	if _, err := b.client.RoleGrantPermission(ctx, b.grant.Role, p.key, p.end, clientv3.PermissionType(p.kind)); err != nil {
		return fmt.Errorf("permit role %s to %s: %w", b.grant.Role, p, err)
	}
	b.tell(StepDone, "%s may %s", b.grant.Role, p)
	return nil
}

func (b bootstrap) user(ctx context.Context) error {
	name := b.grant.User
	got, err := b.client.UserGet(ctx, name)
	switch {
	case errors.Is(err, rpctypes.ErrUserNotFound):
		err = b.addUser(ctx)
	case err != nil:
		err = fmt.Errorf("read user %s: %w", name, err)
	default:
		err = b.keepUser(ctx)
	}
	if err != nil {
		return err
	}
	var roles []string
	if got != nil {
		roles = got.Roles
	}
	for _, role := range roles {
		if role != b.grant.Role {
			b.tell(StepWarning, "user %s also has role %s: take it back, unless it is meant", name, role)
		}
	}
	if slices.Contains(roles, b.grant.Role) {
		b.tell(StepPresent, "user %s has role %s", name, b.grant.Role)
		return nil
	}
	if _, err := b.client.UserGrantRole(ctx, name, b.grant.Role); err != nil {
		return fmt.Errorf("grant role %s to user %s: %w", b.grant.Role, name, err)
	}
	b.tell(StepDone, "user %s has role %s", name, b.grant.Role)
	return nil
}

func (b bootstrap) addUser(ctx context.Context) error {
	name := b.grant.User
	options := &clientv3.UserAddOptions{NoPassword: b.grant.NoPassword}
	if _, err := b.client.UserAddWithOptions(ctx, name, b.grant.Password, options); err != nil {
		return fmt.Errorf("add user %s: %w", name, err)
	}
	if b.grant.NoPassword {
		b.tell(StepDone, "user %s, for a client certificate with CN=%s", name, name)
	} else {
		b.tell(StepDone, "user %s, with the password given", name)
	}
	return nil
}

// keepUser gives a user that there is its password, unless it has that already:
// a change ends what the user is doing.
func (b bootstrap) keepUser(ctx context.Context) error {
	name := b.grant.User
	if b.grant.NoPassword {
		b.tell(StepPresent, "user %s", name)
		return nil
	}
	_, err := b.client.Authenticate(ctx, name, b.grant.Password)
	switch {
	case err == nil:
		b.tell(StepPresent, "user %s, with the password given", name)
		return nil
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrAuthNotEnabled):
		if _, err := b.client.UserChangePassword(ctx, name, b.grant.Password); err != nil {
			return fmt.Errorf("set password of user %s: %w", name, err)
		}
		b.tell(StepDone, "user %s has the password given now", name)
		return nil
	default:
		return fmt.Errorf("try password of user %s: %w", name, err)
	}
}

func (b bootstrap) auth(ctx context.Context) error {
	on, err := authEnabled(ctx, b.client)
	if err != nil {
		return fmt.Errorf("ask for authentication: %w", err)
	}
	if on {
		b.tell(StepPresent, "authentication is on")
		return nil
	}
	b.tell(StepWarning, "authentication is off, so that anybody may write anything: once every client of this etcd has a user, create the user root with the role root and run 'etcdctl auth enable'")
	return nil
}
