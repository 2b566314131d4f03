// Package grpcerr is the one place in which a registry's errors become gRPC
// statuses, and become errors of the same kind and field again at the other end.
package grpcerr

import (
	"context"
	"errors"
	"time"

	"github.com/aether-federation/aether/registry"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

var toCode = map[registry.Kind]codes.Code{
	registry.Internal:    codes.Internal,
	registry.Invalid:     codes.InvalidArgument,
	registry.Conflict:    codes.AlreadyExists,
	registry.NotFound:    codes.NotFound,
	registry.Unavailable: codes.Unavailable,
	registry.SlowReader:  codes.ResourceExhausted,
	registry.Denied:      codes.PermissionDenied,
	registry.Limited:     codes.ResourceExhausted,
}

var toKind = map[codes.Code]registry.Kind{
	codes.InvalidArgument:    registry.Invalid,
	codes.OutOfRange:         registry.Invalid,
	codes.AlreadyExists:      registry.Conflict,
	codes.NotFound:           registry.NotFound,
	codes.Unavailable:        registry.Unavailable,
	codes.DeadlineExceeded:   registry.Unavailable,
	codes.Aborted:            registry.Unavailable,
	codes.Canceled:           registry.Unavailable,
	codes.ResourceExhausted:  registry.SlowReader,
	codes.PermissionDenied:   registry.Denied,
	codes.Unauthenticated:    registry.Denied,
	codes.Unimplemented:      registry.NotFound,
	codes.FailedPrecondition: registry.Conflict,
}

// retryDelay is what a client that was limited is told to wait.
const retryDelay = time.Second

// ToStatus returns err as a gRPC status error with err's text. The field of an
// Invalid error travels as a BadRequest detail. A status error and nil are
// returned as they are.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*registry.Error](err)
	if !ok {
		return foreign(err)
	}
	st := status.New(toCode[e.Kind], err.Error())
	if e.Kind == registry.Limited {
		return detailed(st, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	}
	if e.Field == "" {
		return st.Err()
	}
	return detailed(st, &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: e.Field, Description: e.Err.Error()}},
	})
}

// detailed returns the status with a detail or, where there is no room for one,
// without.
func detailed(st *status.Status, detail protoadapt.MessageV1) error {
	if more, err := st.WithDetails(detail); err == nil {
		return more.Err()
	}
	return st.Err()
}

// foreign returns the status of an error that is none of a registry.
func foreign(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	default:
		return status.Error(codes.Internal, err.Error())
	}
}

// FromStatus returns err, from a gRPC call, as an error of a registry with the
// server's text. What is no status, io.EOF for instance, is returned as it is.
func FromStatus(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	kind := toKind[st.Code()]
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.BadRequest:
			if len(d.GetFieldViolations()) > 0 {
				v := d.GetFieldViolations()[0]
				return &registry.Error{Kind: kind, Field: v.GetField(), Err: errors.New(v.GetDescription())}
			}
		case *errdetails.RetryInfo:
			if st.Code() == codes.ResourceExhausted {
				kind = registry.Limited
			}
		}
	}
	return registry.Errorf(kind, "%s", st.Message())
}
