package registrar_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/registrar"
)

// TestWaitingAnswersAndLeavesItsListenerOpen: nobody who connects is refused, before
// the server is there or while it takes over.
func TestWaitingAnswersAndLeavesItsListenerOpen(t *testing.T) {
	l := listen(t).(*net.TCPListener)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	w := registrar.Waiting{HTTP: l, For: "the own etcd at 10.0.0.1:2379", Log: slog.New(slog.DiscardHandler)}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		for path, want := range map[string]struct {
			status int
			text   string
		}{
			"/livez":      {http.StatusOK, "ok"},
			"/readyz":     {http.StatusServiceUnavailable, "waiting for the own etcd at 10.0.0.1:2379"},
			"/v1/regions": {http.StatusServiceUnavailable, `{"error":{"kind":"unavailable"`},
		} {
			if status, text := get(path); status != want.status || !strings.HasPrefix(text, want.text) {
				t.Errorf("%s: %d %q, want %d %q", path, status, text, want.status, want.text)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}
