package replicator

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// rememberedLines of each kind are told when a model test fails.
	rememberedLines = 400
	rememberedOfKey = 60
)

// history is the last of what happened in a model test: what it did and what the
// replicators said of it, and apart from that, because there is so much more of
// it, the events of each key.
type history struct {
	mu    sync.Mutex
	begun time.Time
	lines []string
	keys  map[string][]string
	// printed: it has been told already.
	printed bool
}

func newHistory() *history { return &history{begun: time.Now(), keys: map[string][]string{}} }

func (h *history) tell(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, h.stamp(format, args...))
	if len(h.lines) > 2*rememberedLines {
		h.lines = append([]string(nil), h.lines[rememberedLines:]...)
	}
}

// of enters an event of one key.
func (h *history) of(key, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines := append(h.keys[key], h.stamp(format, args...))
	h.keys[key] = lines[max(0, len(lines)-rememberedOfKey):]
}

func (h *history) stamp(format string, args ...any) string {
	return fmt.Sprintf("%8.3f ", time.Since(h.begun).Seconds()) + fmt.Sprintf(format, args...)
}

// print writes everything, and the events of the keys that text names, into the
// test's output.
func (h *history) print(t *testing.T, text string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.printed = true
	t.Logf("what happened, in seconds since the start:\n%s", strings.Join(h.lines[max(0, len(h.lines)-rememberedLines):], "\n"))
	for key, lines := range h.keys {
		if strings.Contains(text+" ", key+" ") {
			t.Logf("events of %s:\n%s", key, strings.Join(lines, "\n"))
		}
	}
}

// logger returns what a replicator of that name logs to.
func (h *history) logger(name string) *slog.Logger {
	return slog.New(&historyHandler{history: h, name: name})
}

// historyHandler enters log records into a history.
type historyHandler struct {
	history *history
	name    string
}

func (h *historyHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *historyHandler) Handle(_ context.Context, r slog.Record) error {
	var text strings.Builder
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&text, " %s=%v", a.Key, a.Value)
		return true
	})
	h.history.tell("%s: %s %s%s", h.name, r.Level, r.Message, text.String())
	return nil
}

func (h *historyHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *historyHandler) WithGroup(string) slog.Handler      { return h }
