package replicator

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

var (
	// ErrFenced: another replicator of the same origin took the mirror over, or
	// its owner key was changed by hand. Whoever is fenced must prove its
	// leadership anew before it tries again.
	ErrFenced = errors.New("mirror was taken over by another replicator")

	// ErrRefused: the peer's etcd is not one that may be mirrored to, as it is
	// configured now. The text says why and what to do.
	ErrRefused = errors.New("refused")

	errFull = errors.New("peer's etcd is out of space: free some, defragment, and disarm its NOSPACE alarm")

	// errUnknownOutcome ends a session: a request may have been applied, or may
	// be later, until the next session changes the fence.
	errUnknownOutcome = errors.New("request of unknown outcome")

	// errBroken ends a session: a store is no longer the one, or no longer as far,
	// as it was.
	errBroken = errors.New("store changed under the mirror")

	// errRecords ends a session whose owner, state or live key on the peer somebody
	// else has changed: the next one reads them and puts them right.
	errRecords = errors.New("the mirror's records on the peer were changed by somebody else")

	// errStalled ends a session whose watch does not follow the origin.
	errStalled = errors.New("stalled")

	errLeasesLost = errors.New("leases lost")
)

// verdict says what the failure of a transaction on the peer means.
type verdict uint8

const (
	// unknown: applied, not applied, or applied later.
	unknown verdict = iota
	// full: not applied, because it writes and there is no space.
	full
	// tooLarge: not applied; it has too many operations or bytes for this peer.
	tooLarge
	// leaseGone: not applied; a lease in it does not exist.
	leaseGone
	// keyGone: not applied; a key to attach does not exist.
	keyGone
	// overloaded: not applied; the peer asks for less.
	overloaded
	// denied: not applied; the peer's user may not.
	denied
)

// String returns the verdict as the metric's label.
func (v verdict) String() string {
	return [...]string{"unknown_outcome", "no_space", "too_large", "lease_gone", "key_gone", "overloaded", "denied"}[v]
}

// judge sorts the error of a transaction by what is known of its outcome.
func judge(err error) verdict {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return full
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps), tooLargeToSend(err):
		return tooLarge
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return leaseGone
	case errors.Is(err, rpctypes.ErrKeyNotFound):
		return keyGone
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return overloaded
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return denied
	default:
		return unknown
	}
}

// tooLargeToSend reports whether the client's own gRPC limit refused a request.
func tooLargeToSend(err error) bool {
	s, ok := grpcstatus.FromError(err)
	return ok && s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than max")
}

// cause sorts the errors that end a session into the few words of the metric.
func cause(err error) string {
	switch {
	case errors.Is(err, ErrFenced):
		return "fenced"
	case errors.Is(err, ErrRefused):
		return "refused"
	case errors.Is(err, errCredentials):
		return "credentials"
	case errors.Is(err, errRepair):
		return "repair"
	case errors.Is(err, errFull):
		return "full"
	case errors.Is(err, errBroken):
		return "store_changed"
	case errors.Is(err, errStalled):
		return "stalled"
	case errors.Is(err, errRecords):
		return "records_changed"
	case errors.Is(err, errLeasesLost):
		return "leases_lost"
	case errors.Is(err, rpctypes.ErrCompacted):
		return "compacted"
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrAuthFailed):
		return "denied"
	case errors.Is(err, errUnknownOutcome):
		return "unknown_outcome"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		return "connection"
	}
}
