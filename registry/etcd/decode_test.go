package etcd

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
)

// A key that is written again and again, and many keys, do not flood the log; the
// counter hears of each.
func TestWhatDoesNotParseIsNamedOnce(t *testing.T) {
	var out bytes.Buffer
	counted := 0
	d := newDecoder(slog.New(slog.NewTextHandler(&out, nil)), func(string, error) { counted++ }, nil)
	for range 3 {
		for i := range 2 * maxNamed {
			d.key(fmt.Appendf(nil, "garbage-%d", i))
		}
	}
	if lines := bytes.Count(out.Bytes(), []byte("\n")); lines != maxNamed+1 {
		t.Errorf("%d lines were logged, want %d", lines, maxNamed+1)
	}
	if counted != 6*maxNamed {
		t.Errorf("%d were counted, want %d", counted, 6*maxNamed)
	}
}
