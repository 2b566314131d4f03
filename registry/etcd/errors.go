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
	at := strings.Join(client.Endpoints(), ",")
	switch kind := kindOf(err); kind {
	case registry.Invalid:
		return registry.Errorf(kind, "%s: etcd at %s: %w: send less at once", doing, at, err)
	case registry.Denied:
		return registry.Errorf(kind, "%s: etcd at %s: %w: give its user the permission, or check its credentials", doing, at, err)
	case registry.Unavailable:
		return registry.Errorf(kind, "%s: etcd at %s is not available: %w", doing, at, err)
	default:
		return registry.Errorf(kind, "%s: etcd at %s: %w", doing, at, err)
	}
}

func kindOf(err error) registry.Kind {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, clientv3.ErrNoAvailableEndpoints):
		return registry.Unavailable
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
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

func codeOf(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	return status.Code(err)
}
