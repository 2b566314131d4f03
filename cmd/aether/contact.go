package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// contact notes how far the latest call to a registrar came, which its error does
// not tell.
type contact struct{ sent, answered atomic.Bool }

// TagRPC begins a call.
func (c *contact) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	c.sent.Store(false)
	c.answered.Store(false)
	return ctx
}

// HandleRPC notes what became of it.
func (c *contact) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader:
		c.sent.Store(true)
	case *stats.InHeader, *stats.InTrailer:
		c.answered.Store(true)
	}
}

// TagConn implements stats.Handler, as does HandleConn; they note nothing.
func (c *contact) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *contact) HandleConn(context.Context, stats.ConnStats) {}
