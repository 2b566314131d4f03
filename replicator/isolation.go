package replicator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// isolating are the first releases of each series of etcd that keep a user from
// what it was not granted; earlier ones have published ways around it. Series
// after these do, and series before them do not.
var isolating = []release{{3, 5, 33}, {3, 6, 14}, {3, 7, 1}}

type release struct{ major, minor, patch int }

// tooOldToIsolate returns the release to upgrade to, when an etcd of a version
// cannot keep one origin's user from the keys of others; "" when it can. A version
// that does not parse is an error.
func tooOldToIsolate(version string) (upgrade string, err error) {
	number, _, _ := strings.Cut(version, "-")
	parts := strings.Split(number, ".")
	var v [3]int
	if len(parts) != len(v) {
		return "", fmt.Errorf("version %q: want major.minor.patch", version)
	}
	for i, p := range parts {
		if v[i], err = strconv.Atoi(p); err != nil {
			return "", fmt.Errorf("version %q: want major.minor.patch", version)
		}
	}
	for _, first := range isolating {
		// A pre-release of the first that does is one that does not.
		old := v[2] < first.patch || v[2] == first.patch && number != version
		if v[0] == first.major && v[1] == first.minor && !old {
			return "", nil
		}
		if v[0] < first.major || v[0] == first.major && v[1] <= first.minor {
			return fmt.Sprintf("%d.%d.%d", first.major, first.minor, first.patch), nil
		}
	}
	return "", nil
}

// inspect warns, once in a session, of a peer that asks for users and is too old
// to keep them apart. That it cannot be told is no reason to end the session.
func (s *session) inspect(ctx context.Context) error {
	on, err := authEnabled(ctx, s.client)
	if err != nil || !on {
		s.note("ask peer for authentication", err)
		return nil
	}
	for _, endpoint := range s.peer.Endpoints {
		call, cancel := context.WithTimeout(ctx, s.callTimeout())
		is, err := s.client.Status(call, endpoint)
		cancel()
		if err != nil {
			s.note("ask peer for its version", err)
			continue
		}
		upgrade, err := tooOldToIsolate(is.Version)
		if err != nil {
			s.note("read peer's version", err)
		}
		if upgrade != "" {
			old := oldError(endpoint, is.Version, upgrade)
			s.log.Warn("peer cannot isolate its users", "error", old)
			s.status.warn(warnIsolation, old)
			return nil
		}
	}
	s.status.warn(warnIsolation, nil)
	return nil
}

func oldError(endpoint, version, upgrade string) error {
	return fmt.Errorf("etcd %s at %s cannot keep users to the keys that they were granted (known advisories): upgrade it to %s or later", version, endpoint, upgrade)
}

func (s *session) note(what string, err error) {
	if err != nil {
		s.log.Debug(what, "error", err)
	}
}

// authEnabled reports whether an etcd asks its clients who they are.
func authEnabled(ctx context.Context, c *clientv3.Client) (bool, error) {
	got, err := c.AuthStatus(ctx)
	switch {
	case err == nil:
		return got.Enabled, nil
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		return true, nil // only an etcd with users refuses
	default:
		return false, err
	}
}
