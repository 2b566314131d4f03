package grpcerr_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/grpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestKindsAndFieldsSurviveTheWire(t *testing.T) {
	kinds := []registry.Kind{
		registry.Internal, registry.Invalid, registry.Conflict, registry.NotFound,
		registry.Unavailable, registry.SlowReader, registry.Denied, registry.Limited,
	}
	for _, kind := range kinds {
		err := grpcerr.FromStatus(grpcerr.ToStatus(fmt.Errorf("register: %w", registry.Errorf(kind, "it is so"))))
		if registry.KindOf(err) != kind || err.Error() != "register: it is so" {
			t.Errorf("%v came back as %v: %v", kind, registry.KindOf(err), err)
		}
	}
	err := grpcerr.FromStatus(grpcerr.ToStatus(registry.Invalidf("endpoints[3].ip", "has a zone")))
	e, ok := errors.AsType[*registry.Error](err)
	if !ok || e.Field != "endpoints[3].ip" || err.Error() != "endpoints[3].ip: has a zone" {
		t.Errorf("the field was lost: %#v", err)
	}
}

func TestOtherErrors(t *testing.T) {
	for err, want := range map[error]codes.Code{
		context.Canceled:                      codes.Canceled,
		context.DeadlineExceeded:              codes.DeadlineExceeded,
		errors.New("odd"):                     codes.Internal,
		status.Error(codes.DataLoss, "as is"): codes.DataLoss,
	} {
		if got := status.Code(grpcerr.ToStatus(err)); got != want {
			t.Errorf("%v became %v, want %v", err, got, want)
		}
	}
	if grpcerr.ToStatus(nil) != nil || grpcerr.FromStatus(nil) != nil {
		t.Error("nil became an error")
	}
	if err := grpcerr.FromStatus(io.EOF); err != io.EOF {
		t.Errorf("io.EOF became %v", err)
	}
}
