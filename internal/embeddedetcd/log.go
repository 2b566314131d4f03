package embeddedetcd

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// expected are warnings about what is so on purpose.
var expected = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
}

// core writes what etcd logs to handler. What etcd calls info is told at debug:
// it is about etcd, not about the registry. So is all that it says once stopping
// is set: it takes the end of its listeners for errors.
type core struct {
	handler  slog.Handler
	stopping *atomic.Bool
}

func newCore(log *slog.Logger) core {
	return core{handler: log.With("component", "etcd").Handler(), stopping: new(atomic.Bool)}
}

func (c core) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), level(l))
}

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{handler: c.handler.WithAttrs(attrs(fields)), stopping: c.stopping}
}

func (c core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	ctx, l := context.Background(), level(e.Level)
	if expected[e.Message] || c.stopping.Load() {
		l = slog.LevelDebug
	}
	if !c.handler.Enabled(ctx, l) {
		return nil
	}
	r := slog.NewRecord(e.Time, l, e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.handler.Handle(ctx, r)
}

func (core) Sync() error { return nil }

func level(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

func attrs(fields []zapcore.Field) []slog.Attr {
	m := zapcore.NewMapObjectEncoder()
	out := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		f.AddTo(m)
		if v, ok := m.Fields[f.Key]; ok {
			out = append(out, slog.Any(f.Key, v))
		}
	}
	return out
}
