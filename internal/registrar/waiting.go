package registrar

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/registry"
)

// Waiting answers HTTP in place of a Server that cannot be made yet.
type Waiting struct {
	// HTTP is the listener of the Server to come: it stays open.
	HTTP *net.TCPListener
	// TLS of the listener; nil: plain text.
	TLS *tls.Config
	// For is what is waited for, such as "the own etcd at 10.0.0.1:2379".
	For string
	Log *slog.Logger
}

// Run answers until ctx ends: that the process lives, that it is not ready, and
// for what it waits to everything else. Whoever connects between its end and the
// start of the Server waits in the listener's queue.
func (w Waiting) Run(ctx context.Context) error {
	s := &http.Server{
		Handler:           w.handler(),
		ReadHeaderTimeout: serving.HeaderTimeout,
		ReadTimeout:       serving.BodyTimeout,
		TLSConfig:         w.TLS,
		ErrorLog:          slog.NewLogLogger(w.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	stopped := context.AfterFunc(ctx, func() { ended <- s.Close() })
	err := w.serve(s)
	if !stopped() {
		err = <-ended
	}
	if err := errors.Join(err, w.HTTP.SetDeadline(time.Time{})); err != nil {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}

func (w Waiting) serve(s *http.Server) error {
	if w.TLS != nil {
		return s.ServeTLS(lent{w.HTTP}, "", "")
	}
	return s.Serve(lent{w.HTTP})
}

func (w Waiting) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", serving.Alive)
	mux.HandleFunc("GET /readyz", func(out http.ResponseWriter, _ *http.Request) {
		serving.Plain(out, http.StatusServiceUnavailable, "waiting for "+w.For+"\n")
	})
	mux.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) {
		serving.Fail(out, registry.Errorf(registry.Unavailable, "the registrar is waiting for %s: try again in a moment", w.For))
	})
	return mux
}

// lent is a listener that its user may close, which ends its Accept only.
type lent struct{ *net.TCPListener }

func (l lent) Close() error { return l.SetDeadline(time.Unix(1, 0)) }
