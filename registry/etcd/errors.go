package etcd

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/aether-federation/aether/registry"
)

// translate makes an error of etcd's client one of the registry's, once, at the
// border: doing says what was tried, such as "register endpoints".
func translate(doing string, client *clientv3.Client, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*registry.Error](err); ok {
		return err
	}
	return registry.Errorf(kindOf(err), "%s: etcd at %s: %w%s", doing, strings.Join(client.Endpoints(), ","), err, advice(err))
}

// kindOf sorts the errors of etcd's client.
func kindOf(err error) registry.Kind {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, clientv3.ErrNoAvailableEndpoints):
		return registry.Unavailable
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return registry.Invalid
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty):
		return registry.Denied
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return registry.NotFound
	}
	switch codeOf(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted:
		return registry.Unavailable
	case codes.PermissionDenied, codes.Unauthenticated:
		return registry.Denied
	default:
		return registry.Internal
	}
}

// advice says what to do about err, where etcd's own text does not.
func advice(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return ": it did not answer in time; retry once it does"
	case errors.Is(err, rpctypes.ErrNoSpace):
		return ": compact and defragment it, then disarm the alarm"
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return ": start it with --max-txn-ops of 128 or more"
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return ": send less at once, or start it with --max-request-bytes of 1.5 MiB or more"
	case kindOf(err) == registry.Denied:
		return ": give its user the permission, or check its credentials"
	default:
		return ""
	}
}

func codeOf(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	return status.Code(err)
}
